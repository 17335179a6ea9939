"""The tab Images: collections that are opened, mapped and searched, and why a hit is or is not the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from likewise import media, pixels, samples
from likewise.compare import compare
from likewise.errors import InputError, RequestError
from likewise.images import default
from likewise.plot.report import inline
from likewise.search import Collection
from likewise.store.index import FORMAT
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, not_found, text, watch, whole
from likewise.studio.uploads import ImageStore, SessionImage, evenly, written

MAX_SHOWN, MAX_HITS, MAX_VERIFIED = 2000, 100, 10
"""Images of a collection that are shown, hits of a search, and how many of those are verified."""
SHORTLIST, SIDE = 100, 1024
"""Candidates of a search, and the longest side of a query."""
SPREAD = 600
"""Collections up to this size are mapped by t-SNE, which shows groups; larger ones by their principal components."""
MAX_GROUPED = 3000
"""Images among which near-duplicates are grouped while somebody waits."""
SAMPLES = "samples"
QUERIES = ("motorcycle", "coffee", "cat", "temple")
"""Photographs whose places are offered as queries."""
STAGES = {
    "shortlist": ("comparing local features", 0.3),
    "re-rank": ("verifying the best pixel by pixel", 0.6),
    "verify": ("drawing the evidence", 0.9),
}
"""What is reported after each stage of a search: what comes next, and the share that is done."""
MODELS = {"homography": "one plane, or a camera that only turned", "fundamental": "one scene seen by two cameras"}


class Tab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.cache = store, cache
        self._sources = {**name_folders(given.folders), SAMPLES: ""}
        self._collections: dict[str, Any] = {}
        self._groups: dict[str, list[list[str]]] = {}

    def sources(self) -> list[dict[str, Any]]:
        """What can be opened, what was given first; the count where it is known."""
        counts = {name: len(collection) for name, collection in self._collections.items()}
        return [
            {"name": name, "words": place or "Places cut out of sample photographs.", "count": counts.get(name)}
            for name, place in self._sources.items()
        ]

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Open a collection, indexing what is new in it; its images with their places on a map."""
        name = self._source(fields)
        work.report(f"opening {name}")
        folder = self._folder(name)
        if folder is not None:  # listed as soon as the names are known: before they are indexed and mapped
            files = media.images(folder)
            listed = [(p, p.relative_to(folder).as_posix()) for p in evenly(files, MAX_SHOWN)]
            work.partial(self._answer(name, len(files), listed, f"{len(files)} images, being indexed"))
        collection = self._at_work(work, name, update=True)
        work.report("drawing the map", 0.9)
        names = sorted(collection.index.names())
        rows = dict(sorted(collection.index.vectors(evenly(names, MAX_SHOWN)).items()))
        spots = lay_out(np.array(list(rows.values())))
        work.check()
        few = "" if len(rows) == len(names) else f"; {len(rows)} of them shown"
        bad = f"; {len(collection.report.skipped)} cannot be read" if collection.report.skipped else ""
        listed = [(collection.path_of(n), n) for n in rows]
        words = f"{len(names)} images, {collection.about.model}{few}{bad}"
        answer = self._answer(name, len(names), listed, words)
        for image, (x, y) in zip(answer["pictures"], spots, strict=True):
            image.update(x=float(x), y=float(y))
        return answer

    def _answer(self, source: str, count: int, listed: Sequence[tuple[Any, str]], words: str) -> dict[str, Any]:
        images = [
            {**self.store.link(path, name).to_dict(), "label": PurePosixPath(name).parent.name} for path, name in listed
        ]
        queries: list[dict[str, Any]] = []
        if source == SAMPLES:  # places of the collection in other light, turned, cropped elsewhere
            folder = written(self.cache / "queries", samples.queries)
            chosen = [p for name in QUERIES for p in sorted((folder / name).glob("*.jpg"))[:3]]
            queries = [self.store.link(p, p.relative_to(folder).as_posix()).to_dict() for p in chosen]
        return {"source": source, "count": count, "pictures": images, "queries": queries, "words": words}

    def _source(self, fields: Fields) -> str:
        name = text(fields, "source")
        if name not in self._sources:
            raise not_found("this collection")
        return name

    def _folder(self, name: str) -> Path | None:
        """The folder of a source; None where it is an index that was made before."""
        place = self._sources[name]
        if not place:
            return written(self.cache / "places", samples.gallery)
        return None if "://" in place or Collection.exists(place) else Path(place).absolute()

    def _at_work(self, work: Work, name: str, *, update: bool = False) -> Any:
        """The collection of a source; `update` brings the index of a folder up to date."""
        folder = self._folder(name)
        if name not in self._collections:
            if folder is None:
                collection = Collection.open(self._sources[name])
            else:
                model = default()
                # By the folder's path, the model and the format, in the user's cache: another version's is left alone.
                named = f"{os.path.realpath(folder)} {model.digest} {FORMAT}"
                key = hashlib.sha256(named.encode()).hexdigest()[:20]
                with watch(model, work, "indexing", len(media.images(folder))):
                    collection = Collection.build(folder, self.cache / f"index-{key}", model=model)
            self._collections[name] = collection
        elif update and folder is not None:
            self._groups.pop(name, None)
            collection = self._collections[name]
            with watch(collection.model, work, "indexing", len(media.images(folder))):
                collection.update()
        return self._collections[name]

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def search(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Shortlist, re-rank, verify; what is known so far is reported after the shortlist."""
        k, verify = whole(fields, "k", 1, MAX_HITS, 12), whole(fields, "verify", 0, MAX_VERIFIED, 3)
        collection = self._at_work(work, self._source(fields))
        query = self.store.get(text(fields, "query"))

        def answer(hits: Sequence[Any], seconds: dict[str, float], judged: bool) -> dict[str, Any]:
            shown = [self._hit(collection, hit, rank, judged) for rank, hit in enumerate(hits[:k], 1)]
            return {"query": query.to_dict(), "hits": shown, "seconds": seconds}

        def on_stage(stage: str, hits: Sequence[Any]) -> None:
            work.check()
            if stage == "shortlist":
                work.partial(answer(hits, {}, False))
            work.report(*STAGES.get(stage, (stage, None)))

        work.report("looking for similar images")
        with watch(pixels.default(), work):
            result = collection.search(
                self.store.read(query.id, SIDE), k, shortlist=SHORTLIST, verify=verify, leave_out=[query.path],
                on_stage=on_stage,
            )  # fmt: skip
        seconds = {name.replace("-", ""): round(s, 3) for name, s in result.seconds.items()}
        return answer(result.hits, seconds, True)

    def _hit(self, collection: Any, hit: Any, rank: int, judged: bool) -> dict[str, Any]:
        image, evidence = self._link(collection, hit.path), hit.evidence
        told = {"distance": hit.distance, "local_distance": hit.local_distance}
        if judged:
            told |= {"probability": hit.probability, "verdict": hit.verdict}
        if evidence is not None:
            told |= {"inliers": evidence.n, "matches": len(evidence.matches)}
        return {"rank": rank, "picture": image.to_dict(), "name": image.name, **told}

    def why(self, work: Work, fields: Fields) -> dict[str, Any]:
        """One hit compared with the query as `likewise compare` does: views are searched, and the hit is warped."""
        a, b = (self.store.read(text(fields, name), SIDE) for name in ("query", "hit"))
        work.report("aligning the two")
        with watch(pixels.default(), work):
            comparison = compare(a, b)
        judged: Any = comparison.pair
        evidence = judged.evidence
        work.report("drawing", 0.9)
        return {
            "why": inline(evidence.plot(title=" ")) if evidence.n else None,
            "warp": self.store.publish(comparison.warp()),
            "inliers": evidence.n,
            "matches": len(evidence.matches),
            "probability": judged.probability,
            "verdict": judged.verdict,
            "words": _explain(evidence),
        }

    def duplicates(self, fields: Fields) -> dict[str, Any]:
        """Groups of near-duplicates, by their ids."""
        name = self._source(fields)
        if name not in self._collections:
            raise RequestError(409, f"source: open {name} first")
        collection = self._collections[name]
        if len(collection) > MAX_GROUPED:
            raise InputError(
                f"source: {len(collection)} images are too many to group while you wait; "
                "likewise search --duplicates does it on the command line"
            )
        if name not in self._groups:
            self._groups[name] = collection.duplicates()
        return {"groups": [[self._link(collection, path).id for path in group] for group in self._groups[name]]}

    def _link(self, collection: Any, path: str) -> SessionImage:
        return self.store.link(path, collection.name_of(path))

    def close(self) -> None:
        """Close the indexes."""
        for collection in self._collections.values():
            collection.close()


def _explain(evidence: Any) -> str:
    """The evidence in a sentence."""
    if evidence.kind is None:
        return f"The two have nothing in common: {evidence.reason or 'no geometry has enough inliers'}."
    return f"{evidence.n} of {len(evidence.matches)} matches are inliers of {MODELS[evidence.kind]}."


def name_folders(folders: Sequence[str]) -> dict[str, str]:
    """Each folder under a name of its own: its last part, and a number where that is taken."""
    named: dict[str, str] = {}
    for folder in folders:
        last = PurePosixPath(folder).name or folder
        name, number = last, 2
        while name in {SAMPLES, *named}:
            name, number = f"{last} ({number})", number + 1
        named[name] = folder
    return named


def lay_out(embeddings: NDArray[Any]) -> NDArray[np.float64]:
    """Places (n, 2) in [0, 1] such that similar images lie together; the same embeddings give the same places."""
    n = len(embeddings)
    if n < 3 or np.ptp(embeddings, axis=0).max() < 1e-9:  # too few, or all the same: in a row
        return np.column_stack([np.linspace(0.25, 0.75, n), np.full(n, 0.5)])
    components = PCA(min(50, *embeddings.shape), svd_solver="full").fit_transform(embeddings.astype(np.float64))
    flat = components[:, :2]
    if 8 <= n <= SPREAD:
        start = (1e-4 * flat / flat[:, 0].std()).astype(np.float32)  # as scikit-learn scales init="pca"
        perplexity = min(30.0, (n - 1) / 3)
        flat = TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(components)
    low, high = flat.min(0), flat.max(0)
    return np.asarray((flat - low) / np.where(high > low, high - low, 1.0))
