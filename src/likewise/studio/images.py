"""The tabs Find and Duplicates: collections that are opened, searched, mapped and grouped; and the evidence of a pair.

The evidence of a hit is kept when it is found: what a card says and what "Why?" opens is one object.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from likewise import images, media, samples
from likewise.errors import FileError, InputError, LikewiseError, RequestError
from likewise.images import default
from likewise.search import Collection, pair
from likewise.store.index import FORMAT
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, not_found, text, watch, whole
from likewise.studio.uploads import ImageStore, Recent, SessionImage, evenly, written

MAX_SHOWN, MAX_HITS, MAX_VERIFIED = 2000, 100, 20
"""Images of a collection that are shown, hits of a search, and how many of those are verified."""
SHORTLIST, SIDE = 100, 1024
"""Candidates of a search, and the longest side of a query."""
KEPT, POINTS = 600, 400
"""Pairs whose evidence is kept, and inliers of each that are drawn."""
SAMPLES = "samples"
QUERIES = ("motorcycle", "coffee", "cat", "temple")
"""Photographs whose places are offered as queries."""
STAGES = {"shortlist": ("verifying the best", 0.3), "re-rank": ("verifying the best", 0.5)}
"""What is reported after each stage of a search: what comes next, and the share that is done."""
MODELS = {"homography": "one plane, or a camera that only turned", "fundamental": "one scene seen by two cameras"}
OUTSIDE = (128, 128, 128)
"""The colour of what b does not show of a."""
DATE, TIME = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"(\d{4}):(\d\d):(\d\d)( \d\d:\d\d)?")


class Tab:
    """What the tabs ask for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.cache = store, cache
        self._sources = {**name_folders(given.folders), SAMPLES: ""}
        self._collections: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._pairs: Recent[dict[str, Any]] = Recent(KEPT, "this pair")
        self._taken: dict[str, dict[str, Any]] = {}

    def sources(self) -> list[dict[str, Any]]:
        """What can be opened, what was given first; the count where it is known."""
        counts = {name: len(collection) for name, collection in self._collections.items()}
        return [
            {"name": name, "words": place or "Places cut out of sample photographs.", "count": counts.get(name)}
            for name, place in self._sources.items()
        ]

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    def gallery(self, fields: Fields) -> dict[str, Any]:
        """The images of a collection before it is indexed: names alone, so that there is something to look at."""
        name = self._source(fields)
        folder = self._folder(name)
        if folder is None:
            collection = self._collections.get(name) or Collection.open(self._sources[name])
            names = sorted(collection.index.names())
            listed = [(collection.path_of(n), n) for n in evenly(names, MAX_SHOWN)]
        else:
            names = media.images(folder, unreadable=[])
            listed = [(p, p.relative_to(folder).as_posix()) for p in evenly(names, MAX_SHOWN)]
        queries: Sequence[Path] = []
        if name == SAMPLES:  # places of the collection in other light, turned, cropped elsewhere
            at = written(self.cache / "queries", samples.queries)
            queries = [p for query in QUERIES for p in sorted((at / query).glob("*.jpg"))[:3]]
        return {
            "source": name,
            "count": len(names),
            "pictures": [self._shown(path, n) for path, n in listed],
            "queries": [self._shown(p, f"{p.parent.name}/{p.name}") for p in queries],
        }

    def open(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Index what is new in a collection; then it can be searched. Dates and places of what is shown."""
        name = self._source(fields)
        work.report(f"opening {name}")
        collection = self._at_work(work, name)
        names = sorted(collection.index.names())
        shown = evenly(names, MAX_SHOWN)
        work.report("reading dates and places", 0.95)
        few = "" if len(shown) == len(names) else f"; {len(shown)} of them shown"
        bad = f"; {len(collection.report.skipped)} cannot be read" if collection.report.skipped else ""
        pictures = [self._shown(path, n) | self._taken_at(path) for n in shown for path in [collection.path_of(n)]]
        return {"source": name, "count": len(names), "pictures": pictures, "words": f"{len(names)} photos{few}{bad}"}

    def map(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Places (id → x, y) of the images that are shown, such that similar ones lie together."""
        collection = self._opened(fields)
        work.report("drawing the map")
        names = evenly(sorted(collection.index.names()), MAX_SHOWN)
        rows = dict(sorted(collection.index.vectors(names).items()))
        spots = images.metrics.lay_out(np.array(list(rows.values()))).round(5).tolist()
        return {self._link(collection, collection.path_of(n)).id: spot for n, spot in zip(rows, spots, strict=True)}

    def _source(self, fields: Fields) -> str:
        name = text(fields, "source")
        if name not in self._sources:
            raise not_found("this collection")
        return name

    def _opened(self, fields: Fields) -> Any:
        name = self._source(fields)
        if name not in self._collections:
            raise RequestError(409, f"source: {name} is not indexed yet; open it first")
        return self._collections[name]

    def ready(self, work: Work, fields: Fields) -> Any:
        """The collection of a source as it was last opened; one that was not is indexed now."""
        name = self._source(fields)
        return self._collections[name] if name in self._collections else self._at_work(work, name)

    def _folder(self, name: str) -> Path | None:
        """The folder of a source; None where it is an index that was made before."""
        place = self._sources[name]
        if not place:
            return written(self.cache / "places", samples.gallery)
        return None if "://" in place or Collection.exists(place) else Path(place).absolute()

    def _at_work(self, work: Work, name: str) -> Any:
        """The collection of a source, its index brought up to date where it is a folder's."""
        folder = self._folder(name)
        if folder is None:
            if name not in self._collections:
                self._collections[name] = Collection.open(self._sources[name])
            return self._collections[name]
        known = self._collections.get(name)
        model = default() if known is None else known.model
        with watch(model, work, "indexing", len(media.images(folder, unreadable=[]))):
            if known is None:
                # By the folder's path, the model and the format, in the user's cache: another version's is left alone.
                named = f"{os.path.realpath(folder)} {model.digest} {FORMAT}"
                key = hashlib.sha256(named.encode()).hexdigest()[:20]
                known = self._collections[name] = Collection.build(folder, self.cache / f"index-{key}", model=model)
                report = known.report
            else:
                report = known.update()
        if report.added or report.updated or report.removed:
            self._groups.pop(name, None)
        return known

    def _shown(self, path: Any, name: str) -> dict[str, Any]:
        return {**self.store.link(path, name).to_dict(), "label": PurePosixPath(name).parent.name}

    def _link(self, collection: Any, path: str) -> SessionImage:
        return self.store.link(path, collection.name_of(path))

    def _taken_at(self, path: str) -> dict[str, Any]:
        """When and where a photo was taken, as its EXIF has it: "2024-05-31 18:20" and [latitude, longitude]."""
        if path not in self._taken:
            try:
                exif = media.read_exif(path)
            except (LikewiseError, OSError):
                exif = media.Exif()
            told = TIME.match(exif.time or "")
            time = f"{'-'.join(told.groups()[:3])}{told[4] or ''}" if told and told[1] != "0000" else None
            self._taken[path] = {"time": time, "place": exif.place and [round(v, 6) for v in exif.place[:2]]}
        return self._taken[path]

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def search(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Shortlist, then verify the best; what is known after the shortlist is handed out at once."""
        k, verify = whole(fields, "k", 1, MAX_HITS, 24), whole(fields, "verify", 0, MAX_VERIFIED, 10)
        collection = self._opened(fields)
        query = self.store.get(text(fields, "query"))
        left = [str(query.path), *self._out_of_range(work, collection, fields)]

        def answer(hits: Iterable[Any], seconds: Mapping[str, float], judged: bool) -> dict[str, Any]:
            shown = [self._hit(query, self._link(collection, hit.path), hit, judged) for hit in [*hits][:k]]
            shown.sort(key=lambda hit: -hit.get("probability", 0.0) if hit["verified"] else 1.0)
            return {"query": query.to_dict(), "hits": shown, "seconds": round(sum(seconds.values()), 2)}

        def on_stage(stage: str, hits: Sequence[Any]) -> None:
            work.check()
            if stage == "shortlist":
                work.partial(answer(hits, {}, False))
            work.report(*STAGES.get(stage, ("drawing", 0.95)))

        work.report("looking for similar photos")
        result = collection.search(
            self.store.read(query.id, SIDE), k, shortlist=SHORTLIST, verify=verify, leave_out=left, on_stage=on_stage
        )
        return answer(result, result.seconds, True)

    def _hit(self, query: SessionImage, image: SessionImage, hit: Any, judged: bool) -> dict[str, Any]:
        """What a card shows of a hit; its evidence is kept, to be opened."""
        verified = hit.evidence is not None
        said = {"picture": {**image.to_dict(), **self._taken_at(str(image.path))}, "verified": verified}
        if judged and verified:
            kept = self._keep(query.id, image.id, hit)
            said |= {name: kept[name] for name in ("verdict", "probability", "inliers", "matches", "relation")}
        return said

    def _out_of_range(self, work: Work, collection: Any, fields: Fields) -> list[str]:
        """The photos that were not taken between `since` and `until`, both included, where these are given."""
        ends = [fields.get(name) or "" for name in ("since", "until")]
        if any(not isinstance(end, str) or (end and not DATE.fullmatch(end)) for end in ends):
            raise InputError("since and until: expected dates such as 2024-05-31")
        if not any(ends):
            return []
        work.report("reading dates")
        records = ((collection.path_of(r.name), r.taken) for r in collection.index.records())
        times = {path: taken or self._taken_at(path)["time"] or "" for path, taken in records}
        since, until = ends[0], (ends[1] or "9999") + "~"  # after any time of that day
        return [path for path, time in times.items() if not time or not since <= time <= until]

    def _keep(self, a: str, b: str, hit: Any) -> dict[str, Any]:
        """The evidence of a pair as plain values, kept under both ids."""
        evidence = hit.evidence.to_dict()
        words = {"relation": evidence.get("relation", ""), "words": _explain(evidence)}
        kept = {**evidence, **words, "verdict": hit.verdict, "probability": hit.probability}
        self._pairs.put(kept, f"{a} {b}")
        return kept

    def why(self, work: Work, fields: Fields) -> dict[str, Any]:
        """The evidence of a pair: that of the search where it was verified there, or found now; and b warped to a."""
        a, b = text(fields, "a"), text(fields, "b")
        kept = self._pairs.find(f"{a} {b}")
        if kept is None:
            work.report("verifying the pair")
            kept = self._keep(a, b, pair(self.store.read(a, SIDE), self.store.read(b, SIDE)))
        work.report("drawing", 0.9)
        sure = kept["model"] == "homography" and kept["verdict"] != "different"
        warped = self.store.publish(warp(self.store.read(a), self.store.read(b), kept)) if sure else None
        pictures = {name: self.store.get(key).to_dict() for name, key in (("a", a), ("b", b))}
        return {**kept, **pictures, "points": evenly(kept["points"], POINTS), "warp": warped}

    # ── duplicates ────────────────────────────────────────────────────────────────────────────────────────────────

    def duplicates(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Groups of copies, what each is and which to keep; equal files at once, all others when they are compared."""
        name = self._source(fields)
        folder = self._folder(name)
        if folder is not None and name not in self._groups:
            work.report("looking for equal files")
            files = media.images(folder, unreadable=[])
            if not files:
                raise FileError(f"{name}: there is no photo in this folder")
            exact = [[str(p) for p in group] for group in equal_files(files, work.check)]
            work.partial(self._grouped(name, folder, exact, len(files), done=False))
        collection = self._at_work(work, name)
        if name not in self._groups:
            work.report("comparing")

            def told(done: int, total: int) -> None:
                work.report(f"comparing, {done} of {total}", done / max(1, total))

            self._groups[name] = collection.duplicates(on_progress=told)
        root = Path(collection.about.root)
        return self._grouped(name, root, self._groups[name], len(collection), done=True)

    def _grouped(self, name: str, root: Path, groups: Iterable[Any], count: int, *, done: bool) -> dict[str, Any]:
        told = [self._group(root, group, done) for group in groups]
        return {"source": name, "folder": str(root), "count": count, "groups": told, "done": done}

    def _group(self, root: Path, group: Any, done: bool) -> dict[str, Any]:
        """A group as the page shows it: what the library says of each copy, and what its file says."""
        copies = {copy.path: copy for copy in getattr(group, "copies", ())}
        told: list[dict[str, Any]] = []
        for path in group:
            file, copy = Path(path), copies.get(path)
            name = file.relative_to(root).as_posix() if file.is_relative_to(root) else path
            size = os.stat(file).st_size if file.exists() else 0
            words = {key: getattr(copy, key, "") for key in ("what", "why")}
            if not done:
                words["what"] = "exact copy"
            told.append({"picture": self._shown(path, name) | self._taken_at(path), "bytes": size, **words})
        keep = [*group].index(getattr(group, "keep", group[0]))
        return {"keep": told[keep]["picture"]["id"], "copies": [told[keep], *told[:keep], *told[keep + 1 :]]}

    def close(self) -> None:
        """Close the indexes."""
        for collection in self._collections.values():
            collection.close()


def _explain(evidence: Mapping[str, Any]) -> str:
    """The evidence in a sentence."""
    if evidence["model"] is None:
        return f"No common geometry: {evidence['reason'] or 'too few matches fit one'}."
    many = f"{evidence['inliers']} of {evidence['matches']} matches"
    return f"{many} are inliers of {MODELS.get(evidence['model'], evidence['model'])}."


def warp(a: NDArray[Any], b: NDArray[Any], evidence: Mapping[str, Any]) -> NDArray[np.uint8]:
    """b as seen from a, by the homography of the evidence, at the size of a; what b does not show is grey."""
    scales = []
    for image, (height, width) in zip((a, b), evidence["sizes"], strict=True):
        x, y = image.shape[1] / width, image.shape[0] / height
        scales.append(np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]]))  # pixel centres at integers
    forth = scales[1] @ np.array(evidence["matrix"]) @ np.linalg.inv(scales[0])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpPerspective(b, forth, a.shape[1::-1], flags=flags, borderValue=OUTSIDE), dtype=np.uint8)


def equal_files(files: Sequence[Path], check: Callable[[], None]) -> list[list[Path]]:
    """Groups of files that are equal byte by byte; only those of one size are read."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for file in files:
        by_size[file.stat().st_size].append(file)
    groups: dict[str, list[Path]] = defaultdict(list)
    for some in by_size.values():
        for file in some if len(some) > 1 else ():
            check()
            groups[hashlib.sha256(file.read_bytes()).hexdigest()].append(file)
    return [group for group in groups.values() if len(group) > 1]


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
