"""Collection: photos that can be searched in four stages, shortlist → re-rank → verify → explain.

shortlist   the nearest by embedding, in the gallery's FAISS folder or on a Milvus server
re-rank     by the smoothed Wasserstein distance between what two pictures show where
verify      the best few, by matches near the flow and a model that they agree on
explain     every hit carries its distances, plan, matches, and a calibrated verdict
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from likewise.errors import FileError, InputError, LikewiseError
from likewise.images.gallery import Gallery
from likewise.images.model import Embedder, Skipped
from likewise.search import parts
from likewise.search.evidence import Evidence, Verifier, in_parallel
from likewise.search.queries import Query, shots
from likewise.search.result import Found, Result
from likewise.search.verdict import judge
from likewise.types import Signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from likewise.images.compare import Embeds

PLACE = "likewise-index"
"""Where an index is made and looked for when no place is given: a folder in the current one."""
SHORTLIST, VERIFY = 100, 5
"""How many candidates are re-ranked, and how many of the best are verified."""

OnStage = Callable[[str, "Sequence[Found]"], None]


@dataclass(frozen=True)
class Updated:
    """What an update did: pictures added, embedded anew, left as they were, taken out, unreadable."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: tuple[Skipped, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return (
            f"{self.added} added, {self.updated} updated, {self.unchanged} unchanged, {self.removed} removed, "
            f"{len(self.skipped)} unreadable"
        )


class Collection:
    """A folder of photos with its index: `Collection.build` makes one, `Collection.open` opens one."""

    def __init__(self, gallery: Gallery, place: str) -> None:
        self.gallery, self.place = gallery, place
        self.report = Updated()

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        out: str | os.PathLike[str] = PLACE,
        *,
        model: Embeds | None = None,
        kind: str | None = None,
        recall: float | None = None,
        progress: bool = False,
    ) -> Self:
        """Index every photo below `folder` at `out`, a folder or milvus://host:port/collection.

        `kind` and `recall` are those of `Gallery.build`; without them, "auto" and 0.99, or what the index has.

        An index that is there already is brought up to date: new photos are added, changed ones embedded anew, deleted
        ones taken out. One that was interrupted is gone on with; what is kept survives whatever kills the process.
        """
        from likewise.images.stores import places

        if not Path(folder).is_dir():
            raise FileError(f"{os.fspath(folder)}: not a folder; give the folder that holds the photos")
        fresh = not places.exists(out)
        if fresh:
            tuned = 0.99 if recall is None else recall
            gallery = Gallery.build(
                model, folder, out, kind=kind or "auto", recall=tuned, parts=True, progress=progress
            )
        else:
            gallery = Gallery.open(out, model)
        found = cls(gallery, os.fspath(out))
        try:
            if fresh:
                added = gallery.report
                found.report = Updated(added.added, added.updated, added.unchanged, 0, added.skipped)
            else:
                found.update(folder, progress=progress)
                found._become(kind, recall)
        except BaseException:
            gallery.close()
            raise
        return found

    @classmethod
    def open(cls, place: str | os.PathLike[str] = PLACE, model: Embeds | None = None) -> Self:
        """The collection at a place; without `model`, its own is loaded when it is first needed."""
        return cls(Gallery.open(place, model), os.fspath(place))

    def update(self, folder: str | os.PathLike[str] | None = None, *, progress: bool = False) -> Updated:
        """Bring the index up to date with a folder, by default the one it was made of."""
        root = self.gallery.root if folder is None else Path(folder)
        removed = self.gallery.prune()
        added = self.gallery.add(root, progress=progress)
        self.report = Updated(added.added, added.updated, added.unchanged, removed, added.skipped)
        return self.report

    def _become(self, kind: str | None, recall: float | None) -> None:
        """Be searched as is asked for, where that is another way than so far."""
        about = self.gallery.store.about
        wanted = kind or about.kind, about.recall if recall is None else recall
        if wanted != (about.kind, about.recall):
            self.gallery.reindex(*wanted)

    # ── what is in it ─────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self.gallery)

    def __iter__(self) -> Iterator[str]:
        """The path of every photo, in no particular order."""
        return iter(self.gallery)

    def __contains__(self, path: object) -> bool:
        return path in self.gallery

    def __repr__(self) -> str:
        return f"Collection({len(self)} photos of {self.gallery.root}, {self.gallery.store.about.model})"

    def describe(self) -> dict[str, Any]:
        """Root, model, kind, number of photos, and whether parts are kept."""
        return {**self.gallery.describe(), "parts": bool(self.gallery.store.about.cells)}

    def check(self) -> list[str]:
        """What is wrong with what is stored, every byte read; empty when all is well."""
        return self.gallery.check()

    def close(self) -> None:
        """Let go of files and connections."""
        self.gallery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        query: Any,
        k: int = 10,
        *,
        shortlist: int = SHORTLIST,
        rerank: bool = True,
        verify: int = VERIFY,
        thorough: bool = False,
        metric: Any = None,
        aligner: Any = None,
        under: str | os.PathLike[str] | None = None,
        label: str | None = None,
        leave_out: Sequence[str | os.PathLike[str]] = (),
        on_stage: OnStage | None = None,
    ) -> Result:
        """The k photos that most probably show what the query shows, each with its reasons.

        `query`: a picture, several of the same thing, a folder of such, or a video. `shortlist` candidates are found by
        embedding; `rerank` orders them by transport between their parts, under `metric` (None: the identity; a matrix,
        or a fitted `likewise.sets.WassersteinLMNN`); the best `verify` of them are looked at pixel by pixel
        (`thorough`: views are searched, seconds each) and ordered by how probable it is that they show the same.
        `leave_out` names photos that are no answer, such as the query's own file where it is one of the collection.
        `on_stage(name, hits)` is told of each stage.
        With rerank=False and verify=0 this is the gallery's own ranking.
        """
        _check(k, shortlist, verify)
        asked, clock, notes = shots(query), _Clock(), list[str]()
        if asked.of > len(asked):
            notes.append(f"query: {len(asked)} of its {asked.of} pictures, evenly taken")
        told: OnStage = on_stage or (lambda name, hits: None)
        with clock("shortlist"):
            many = max(k, shortlist if rerank or verify else k)
            hits, views = self._shortlist(asked, many, under, label, {os.path.realpath(p) for p in leave_out})
        told("shortlist", hits)
        if rerank and hits:
            with clock("re-rank"):
                hits, said = self._reranked(hits, views, metric)
            notes += said
            told("re-rank", hits)
        hits = [hit.judged(judge()) for hit in hits]
        if verify and hits:
            with clock("verify"):
                hits, said = _verified(asked, hits, verify, thorough, aligner)
            notes += said
            told("verify", hits)
        ranked = tuple(replace(hit, rank=i) for i, hit in enumerate(hits[:k], start=1))
        return Result(asked, ranked, self.place, tuple(clock.seconds), clock.seconds, tuple(notes))

    def duplicates(self, *, progress: bool = False) -> list[list[str]]:
        """Groups of photos that are copies of one another: saved again, resized, slightly cropped or relit."""
        from likewise.search.duplicates import groups

        return groups(self.gallery, progress=progress)

    def signatures(self, paths: Sequence[str | os.PathLike[str]]) -> list[Signature]:
        """What photos of the collection show where, as the sets that re-ranking compares: to learn a metric from."""
        kept = self.gallery.parts(list(paths))
        if kept is None:
            raise InputError(f"model: {self.gallery.store.about.model} has no map of a picture's parts")
        return [parts.signature(one) for one in kept]

    def _shortlist(
        self, query: Query, many: int, under: Any, label: str | None, left: set[str]
    ) -> tuple[list[Found], Any]:
        """The nearest by embedding to any shot, each with the shot it is nearest to; and the shots' parts."""
        model = self.gallery.model
        if isinstance(model, Embedder) and model.part_shape is not None:
            rows, views = model.embed_with_parts(list(query.shots))
        else:
            from likewise.images.embedding import embed_pictures

            rows, views = embed_pictures(model, list(query.shots)), None
        nearest: dict[str, Found] = {}
        for i, found in enumerate(self.gallery.search_rows(rows, many + len(left), under=under, label=label)):
            for hit in found:
                if left and os.path.realpath(hit.path) in left:
                    continue
                if hit.path not in nearest or hit.distance < nearest[hit.path].distance:
                    nearest[hit.path] = Found(hit.path, 0, hit.distance, i)
        ordered = sorted(nearest.values(), key=lambda f: f.distance) if len(query) > 1 else list(nearest.values())
        return [replace(f, rank=i) for i, f in enumerate(ordered[:many], start=1)], views

    def _reranked(self, hits: list[Found], views: Any, metric: Any) -> tuple[list[Found], list[str]]:
        """The same by transport; those whose parts are not known come last, as they were."""
        kept = None if views is None else self.gallery.parts([h.path for h in hits])
        if kept is None:
            return hits, [f"not re-ranked: {self.gallery.store.about.model} has no map of a picture's parts"]
        matrix = parts.check_metric(metric, int(kept.shape[2]))
        values, which = parts.best_transports(views, kept, matrix)
        named = [
            replace(hit, transport=float(v), shot=int(s), parts=(views[s], kept[i]), metric=matrix)
            if np.isfinite(v)
            else hit
            for i, (hit, v, s) in enumerate(zip(hits, values, which, strict=True))
        ]
        return [named[i] for i in parts.order(values)], []


class _Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - began


def _check(k: object, shortlist: object, verify: object) -> None:
    for name, value, least in (("k", k, 1), ("shortlist", shortlist, 1), ("verify", verify, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")


def _verified(
    query: Query, hits: list[Found], many: int, thorough: bool, aligner: Any
) -> tuple[list[Found], list[str]]:
    """The first `many` with what their pixels say, the most probable first; then those that could not be looked at."""
    chosen, verifiers = hits[:many], dict[int, Verifier | LikewiseError]()
    for shot in {hit.shot for hit in chosen}:
        try:
            verifiers[shot] = Verifier(query.shots[shot], aligner=aligner, thorough=thorough)
        except LikewiseError as error:  # too narrow, say: then it is found, but not verified
            verifiers[shot] = error

    def look(hit: Found) -> Evidence | str:
        verifier = verifiers[hit.shot]
        if isinstance(verifier, LikewiseError):
            return f"{hit.path}: not verified: query: {verifier}"
        try:
            return verifier(hit.path)
        except LikewiseError as error:
            return f"{hit.path}: not verified: {error}"

    seen = in_parallel(look, chosen)
    judged = [h if isinstance(e, str) else h.judged(judge(), e) for h, e in zip(chosen, seen, strict=True)]
    judged.sort(key=lambda h: (h.evidence is None, -h.probability))
    return [*judged, *hits[many:]], [e for e in seen if isinstance(e, str)]
