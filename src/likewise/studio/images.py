"""The tab Images: collections that are opened, mapped and searched, and why a picture was found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import InputError
from likewise.studio import watching
from likewise.studio.asked import Fields, Gone, Refused, identity, text, whole
from likewise.studio.drawing import joined
from likewise.studio.jobs import Work
from likewise.studio.store import Picture, Recent, Store

MOST_SHOWN, MOST_HITS, MOST_VERIFIED = 2000, 100, 10
"""Pictures of a collection that are shown, hits of a search, and how many of those are verified."""
SHORTLIST, SIDE, LINES = 100, 1024, 60
"""Candidates of a search; the longest side of a query; matches that are drawn."""
SPREAD = 600
"""Collections up to this size are mapped by t-SNE, which shows groups; larger ones by their principal components."""
MOST_GROUPED = 3000
SAMPLES = "samples"
QUERIES = ("motorcycle", "coffee", "cat", "temple")
"""Photographs whose places are offered as queries."""


@dataclass(frozen=True)
class Source:
    """Something that can be searched: a folder of photos, or an index that was made before."""

    name: str
    words: str
    place: str


@dataclass(frozen=True, eq=False)
class Opened:
    """A collection at work, and the hits of its last searches, by query and path."""

    collection: Any
    found: Recent[dict[str, Any]]

    @property
    def ours(self) -> bool:
        """Whether the index is one that the studio made of a folder: such a one is kept up to date."""
        return Path(self.collection.place).name.startswith("index-")


class Images:
    """What the tab asks for."""

    def __init__(self, store: Store, folders: Sequence[str] = (), cache: Path | None = None) -> None:
        self.store, self.cache = store, (cache or media.cache_folder()) / "studio"
        self._sources = {s.name: s for s in (*map(_source, _distinct(folders)), _sample_source())}
        self._opened: dict[str, Opened] = {}
        self._groups: dict[str, Any] = {}

    def sources(self) -> list[dict[str, Any]]:
        """What can be opened, what was given first; the count where it is known."""

        def count(name: str) -> int | None:
            return len(self._opened[name].collection) if name in self._opened else None

        return [{"name": s.name, "words": s.words, "count": count(s.name)} for s in self._sources.values()]

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Open a collection, indexing what is new in it; its pictures with their places on a map."""
        source = self._source(text(fields, "source"))
        self._announce(work, source)
        opened = self._at_work(work, source, fresh=True)
        gallery = opened.collection.gallery
        work.say("drawing the map", 0.9)
        names = sorted(gallery.store.names())
        shown = _evenly(names, MOST_SHOWN)
        rows = gallery.store.rows(shown)
        shown = [name for name in shown if name in rows]
        places = placed(np.stack([rows[name] for name in shown]))
        work.check()
        pictures = [
            {**self._known(opened, gallery.path_of(n)).to_dict(), "label": label_of(n), "x": float(x), "y": float(y)}
            for n, (x, y) in zip(shown, places, strict=True)
        ]
        report, few = opened.collection.report, "" if len(shown) == len(names) else f"; {len(shown)} of them shown"
        bad = f"; {len(report.skipped)} cannot be read" if report.skipped else ""
        words = f"{len(names)} pictures, {gallery.store.about.model}{few}{bad}"
        answer = {"source": source.name, "count": len(names), "pictures": pictures, "words": words}
        return {**answer, "queries": self._queries() if source.name == SAMPLES else []}

    def _announce(self, work: Work, source: Source) -> None:
        """The pictures of a folder as soon as their names are known: before they are indexed and mapped."""
        from likewise.images.stores import places

        work.say(f"opening {source.name}")
        if source.name != SAMPLES and places.exists(source.place):
            return
        folder = self._folder(source)
        files = media.images(folder)
        names = {p: p.relative_to(folder).as_posix() for p in _evenly(files, MOST_SHOWN)}
        pictures = [{**self.store.known(p, n).to_dict(), "label": label_of(n)} for p, n in names.items()]
        answer = {"source": source.name, "count": len(files), "pictures": pictures}
        queries = self._queries() if source.name == SAMPLES else []
        work.partial({**answer, "queries": queries, "words": f"{len(files)} pictures, being indexed"})

    def _folder(self, source: Source) -> Path:
        return self._samples() if source.name == SAMPLES else Path(source.place).absolute()

    def _queries(self) -> list[dict[str, Any]]:
        """Pictures to search the samples with: places of the gallery in other light, turned, cut anew."""
        from likewise import samples

        folder = self._written("queries", samples.queries)
        chosen = [p for name in QUERIES for p in sorted((folder / name).glob("*.jpg"))[:3]]
        return [self.store.known(p, p.relative_to(folder).as_posix()).to_dict() for p in chosen]

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise Gone("this collection")
        return self._sources[name]

    def _known(self, opened: Opened, path: str) -> Picture:
        return self.store.known(path, opened.collection.gallery.name_of(path))

    def _at_work(self, work: Work, source: Source, *, fresh: bool = False) -> Opened:
        """The collection of a source; `fresh` brings the index of a folder up to date."""
        if source.name not in self._opened:
            self._opened[source.name] = Opened(self._collection(work, source), Recent(20, "this search"))
        elif fresh and self._opened[source.name].ours:
            self._groups.pop(source.name, None)
            self._renewed(work, self._opened[source.name].collection)
        return self._opened[source.name]

    def _renewed(self, work: Work, collection: Any) -> None:
        """Bring an index up to date with its folder."""
        total = len(media.images(collection.gallery.root))
        with watching.embedding(collection.gallery.model, work, total, "indexing"):
            collection.update()

    def _collection(self, work: Work, source: Source) -> Any:
        from likewise.images import default
        from likewise.images.stores import places
        from likewise.search import Collection

        work.say(f"opening {source.name}")
        if source.name != SAMPLES and places.exists(source.place):
            return Collection.open(source.place)
        folder, model = self._folder(source), default()
        out = self._index(folder, model.digest)
        total = len(media.images(folder))
        with watching.embedding(model, work, total, "indexing"):
            return Collection.build(folder, out, model=model)

    def _samples(self) -> Path:
        """The folder of the sample gallery, written when it is first asked for."""
        from likewise import samples

        return self._written("places", samples.gallery)

    def _written(self, name: str, write: Callable[[Path], Any]) -> Path:
        """A folder of the cache that was written to its end, now or before."""
        folder = _writable(self.cache, self.store.folder) / name
        done = folder.with_suffix(".done")
        if not done.exists():
            write(folder)
            media.write_text(done, "every picture is written\n")
        return folder

    def _index(self, folder: Path, digest: str) -> Path:
        """Where the index of a folder is kept: in the user's cache, by the folder's path and the model."""
        key = hashlib.sha256(f"{os.path.realpath(folder)} {digest}".encode()).hexdigest()[:20]
        return _writable(self.cache, self.store.folder) / f"index-{key}"

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def search(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Shortlist, re-rank, verify; what is known so far is told after each stage."""
        k, verify = whole(fields, "k", 1, MOST_HITS, 12), whole(fields, "verify", 0, MOST_VERIFIED, 3)
        opened = self._at_work(work, self._source(text(fields, "source")))
        asked = self.store.picture(identity(fields, "query"))

        def shown(hits: Sequence[Any], judged: bool) -> list[dict[str, Any]]:
            return [self._hit(opened, h, rank, judged) for rank, h in enumerate(hits[:k], 1)]

        def on_stage(stage: str, hits: Sequence[Any]) -> None:
            work.check()
            if stage == "shortlist":
                work.partial({"query": asked.to_dict(), "hits": shown(hits, False), "seconds": {}})
            work.say(AFTER.get(stage, stage), DONE.get(stage))

        work.say("looking for pictures like it")
        with watching.aligning(work):
            found = opened.collection.search(
                self.store.array(asked.id, SIDE), k, shortlist=SHORTLIST, verify=verify, leave_out=[asked.path],
                on_stage=on_stage,
            )  # fmt: skip
        opened.found.put({h.path: h for h in found.hits}, asked.id)
        seconds = {name.replace("-", ""): round(s, 3) for name, s in found.seconds.items()}
        return {"query": asked.to_dict(), "hits": shown(found.hits, True), "seconds": seconds}

    def _hit(self, opened: Opened, hit: Any, rank: int, judged: bool) -> dict[str, Any]:
        evidence, picture = hit.evidence, self._known(opened, hit.path)
        why = None if evidence is None else self._drawn(evidence)
        return {
            "rank": rank,
            "picture": picture.to_dict(),
            "name": picture.name,
            "distance": hit.distance,
            "transport": hit.transport,
            "probability": hit.probability if judged else None,
            "verdict": hit.verdict if judged else None,
            "inliers": None if evidence is None else evidence.n,
            "matches": None if evidence is None else len(evidence.matches),
            "why": why,
        }

    def _drawn(self, evidence: Any) -> str:
        """Both pictures with the matches that agree, or all where none do; a file."""
        some = evidence.matches.take(evidence.inliers) if evidence.n else evidence.matches
        which = _evenly(range(len(some)), LINES)
        a, b = evidence.pictures
        sheet = joined(a, b, [(some.a[i], some.b[i]) for i in which])
        return f"api/files/{self.store.write(sheet)}"

    # ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def why(self, work: Work, fields: Fields) -> dict[str, Any]:
        """One hit looked at thoroughly: views are searched, and the hit is laid onto the query."""
        from likewise.pixels import default
        from likewise.search import verified
        from likewise.search.verdict import judge, word

        opened = self._at_work(work, self._source(text(fields, "source")))
        query, hit = (self.store.picture(identity(fields, name)) for name in ("query", "hit"))
        work.say("aligning the two")
        flows = Remembering(default())
        with watching.aligning(work):
            evidence = verified(*(self.store.array(p.id, SIDE) for p in (query, hit)), aligner=flows)
        work.say("drawing", 0.9)
        distance, transport = self._measured(opened, query, hit)
        probability = judge().probability(distance, transport, evidence)
        return {
            "why": self._drawn(evidence),
            "warp": f"api/files/{self.store.write(flows.laid(evidence.pictures[1]))}",
            "inliers": evidence.n,
            "matches": len(evidence.matches),
            "probability": probability,
            "verdict": word(probability),
            "words": _said(evidence),
        }

    def _measured(self, opened: Opened, query: Picture, hit: Picture) -> tuple[float, float | None]:
        """The distances of a pair: those of the search that found it, or else that of the embeddings."""
        from likewise.images import compare

        try:
            found = opened.found.get(query.id).get(str(hit.path))
        except Gone:
            found = None
        if found is not None:
            return found.distance, found.transport
        arrays = [self.store.array(p.id, SIDE) for p in (query, hit)]
        return compare(*arrays, model=opened.collection.gallery.model).distance, None

    def close(self) -> None:
        """Let go of the indexes."""
        for opened in self._opened.values():
            opened.collection.close()

    # ── near-duplicates ───────────────────────────────────────────────────────────────────────────────────────────

    def duplicates(self, source: str) -> dict[str, Any]:
        """Groups of pictures that are copies of one another, by their ids."""
        self._source(source)
        if source not in self._opened:
            raise Refused(409, f"source: open {source} first")
        opened = self._opened[source]
        if len(opened.collection) > MOST_GROUPED:
            raise InputError(
                f"source: {len(opened.collection)} pictures are too many to group while you wait; "
                "likewise search --duplicates does it on the command line"
            )
        if source not in self._groups:
            self._groups[source] = opened.collection.duplicates()
        return {"groups": [[self._known(opened, p).id for p in group] for group in self._groups[source]]}


AFTER = {
    "shortlist": "comparing what they show where",
    "re-rank": "looking at the best pixel by pixel",
    "verify": "drawing what speaks for them",
}
DONE = {"shortlist": 0.3, "re-rank": 0.6, "verify": 0.9}


class Remembering:
    """An aligner that keeps the flow it gave last."""

    def __init__(self, aligner: Any) -> None:
        self.aligner, self.work = aligner, aligner.work
        self.flow: Any = None

    def both(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Both flows between two pictures."""
        self.flow, back = self.aligner.both(a, b)
        return self.flow, back

    def laid(self, b: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """b brought onto a by the flow; b itself where there was none."""
        import torch

        from likewise.pixels.geometry import warp

        if self.flow is None:
            return b
        moved = warp(torch.from_numpy(b).permute(2, 0, 1)[None].float(), self.flow[None])
        return np.asarray(moved[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())


def _said(evidence: Any) -> str:
    """The evidence in a sentence."""
    if evidence.kind is None:
        return f"Nothing that the two have in common was found: {evidence.reason or 'no matches agree'}."
    words = {"homography": "one plane, or a camera that only turned", "fundamental": "one scene seen by two cameras"}
    return (
        f"{evidence.n} of {len(evidence.matches)} matches agree on {words[evidence.kind]}; "
        f"{evidence.home:.0%} of the query's pixels go there and come home."
    )


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sample_source() -> Source:
    words = "Places cut out of photographs that come with scikit-image and scikit-learn."
    return Source(SAMPLES, words, "")


def _source(named: tuple[str, str]) -> Source:
    from likewise.images.stores import places

    name, place = named
    remote = "://" in place
    kind = "An index" if remote or places.exists(place) else "A folder, indexed when it is first opened"
    return Source(name, f"{kind}: {place}", place)


def _distinct(folders: Sequence[str]) -> list[tuple[str, str]]:
    """Each folder with a name of its own: its last part, and a number where that is taken."""
    taken, named = {SAMPLES}, []
    for folder in folders:
        last = PurePosixPath(folder).name or folder
        name, number = last, 2
        while name in taken:
            name, number = f"{last} ({number})", number + 1
        taken.add(name)
        named.append((name, folder))
    return named


def label_of(name: str) -> str:
    """The label of a picture: the folder that it lies in."""
    return PurePosixPath(name).parent.name


def _writable(wanted: Path, otherwise: Path) -> Path:
    """The user's cache folder, or the session's where that cannot be written to."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted if os.access(wanted, os.W_OK) else otherwise
    except OSError:
        return otherwise


def _evenly(items: Any, most: int) -> list[Any]:
    """All, or `most` of them, evenly spaced."""
    listed = list(items)
    if len(listed) <= most:
        return listed
    return [listed[i] for i in np.linspace(0, len(listed) - 1, most).round().astype(int)]


# ── the map ───────────────────────────────────────────────────────────────────────────────────────────────────────


def placed(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Places (n, 2) in [0, 1] such that what is alike lies together; the same rows give the same places."""
    n = len(rows)
    if n < 3:
        return np.column_stack([np.linspace(0.25, 0.75, n), np.full(n, 0.5)])
    centred = np.asarray(rows, dtype=np.float64) - np.mean(rows, axis=0, dtype=np.float64)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    components = U[:, : min(50, len(s))] * s[: min(50, len(s))]
    flat = components[:, :2] if n > SPREAD or n < 8 or s[0] < 1e-9 else _spread(components)
    low, high = flat.min(0), flat.max(0)
    return np.asarray((flat - low) / np.where(high > low, high - low, 1.0))


def _spread(components: NDArray[np.float64]) -> NDArray[np.float64]:
    """t-SNE that begins at the first two principal components."""
    from sklearn.manifold import TSNE

    start = (1e-4 * components[:, :2] / components[:, 0].std()).astype(np.float32)
    perplexity = min(30.0, (len(components) - 1) / 3)
    return np.asarray(TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(components))
