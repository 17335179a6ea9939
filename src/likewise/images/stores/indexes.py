"""FAISS: exact search over rows as they lie on disk, and approximate indexes, their recall measured at the building."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError
from likewise.images.stores import Rows
from likewise.images.stores.segments import sha256

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
Kind = Literal["auto", "flat", "ivf", "hnsw"]
KINDS = ("auto", "flat", "ivf", "hnsw")

FLAT_UNTIL = 100_000
"""Up to this many rows "auto" is flat: exact, nothing to build, 28 ms a query at 1280 dimensions on one core.

Above it is IVF: there a query costs what it costs with HNSW, 0.2 to 0.3 ms, and the index is built in half the time.
"""

BLOCK = 16_384
"""Rows that are gathered at a time where some are left out."""

AT, HELD_OUT = 10, 256
"""Recall is measured at 10, on this many rows that the index has not seen: half to tune on, half to report."""

LEAST_ROWS = 1_000
"""Below this many rows an approximate index is not worth its name: searches stay flat."""

MOST_SOUGHT = 512
"""Whoever asks for more neighbours than this gets a flat search: an index is tuned for few."""

PER_LIST, ROUNDS, LINKS, EFFORT, MOST_EFFORT = 40, 10, 32, 100, 4096
"""IVF: rows a list is trained on, rounds of k-means. HNSW: links of a node, effort of building and most of a search."""


# ---------------------------------------------------------------------------------------------------------- exact


def exact(parts: Iterable[tuple[Ids, Rows]], queries: Rows, k: int) -> tuple[NDArray[np.float32], Ids]:
    """The k nearest rows of all parts to each query: squared distances (q, k) ascending and ids, −1 where too few."""
    faiss: Any = importlib.import_module("faiss")

    best = np.full((len(queries), k), np.inf, dtype=np.float32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    for ids, rows in parts:
        # plain arrays: what others patch into FAISS (faiss.contrib.torch_utils) does not take a memory map for one
        D, I = faiss.knn(np.asarray(queries), np.asarray(rows), min(k, len(rows)))
        D, I = np.concatenate([best, D], axis=1), np.concatenate([found, ids[I]], axis=1)
        order = np.argsort(D, axis=1, kind="stable")[:, :k]
        best, found = np.take_along_axis(D, order, axis=1), np.take_along_axis(I, order, axis=1)
    return best, found


class Gathered:
    """Some rows of several parts (ids, rows, which of them), as if they were one array, without a copy of it."""

    def __init__(self, parts: Iterable[tuple[Ids, Rows, Mask]]) -> None:
        given = list(parts)
        self.parts = [(rows, np.flatnonzero(mask)) for _, rows, mask in given]
        self.ids = np.concatenate([np.empty(0, np.int64), *(ids[mask] for ids, _, mask in given)])
        self.starts = np.cumsum([0, *(len(at) for _, at in self.parts)])

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Ids) -> Rows:
        """The rows at ascending positions."""
        cuts = np.searchsorted(positions, self.starts)
        taken = [
            rows[at[positions[a:b] - start]]
            for (rows, at), start, a, b in zip(self.parts, self.starts, cuts, cuts[1:], strict=False)
            if b > a
        ]
        return np.ascontiguousarray(np.concatenate(taken))

    def blocks(self, positions: Ids | None = None) -> Iterator[tuple[Ids, Rows]]:
        """Ids and rows, a block at a time; a part of which all is wanted comes as it lies."""
        if positions is None:
            yield from self._whole()
            return
        for start in range(0, len(positions), BLOCK):
            some = positions[start : start + BLOCK]
            yield self.ids[some], self.take(some)

    def _whole(self) -> Iterator[tuple[Ids, Rows]]:
        for (rows, at), start in zip(self.parts, self.starts, strict=False):
            if len(at) == len(rows) > 0:
                yield self.ids[start : start + len(at)], rows
            elif len(at):
                yield from self.blocks(np.arange(start, start + len(at)))


# ---------------------------------------------------------------------------------------------------- approximate


@dataclass(frozen=True)
class Facts:
    """What is known of an index: its kind, its rows, the effort of a search (nprobe or efSearch), its recall at 10."""

    kind: str
    rows: int
    effort: int
    recall: float
    wanted: float
    queries: int
    lists: int = 0


class Index:
    """An approximate index over rows with ids, tuned to a recall."""

    def __init__(self, inner: Any, facts: Facts) -> None:
        self.inner, self.facts = inner, facts

    def search(self, queries: Rows, k: int) -> tuple[NDArray[np.float32], Ids]:
        """Squared distances and ids of about the k nearest; −1 where too few were seen."""
        effort, most = self.facts.effort, self.facts.lists or MOST_EFFORT
        while True:
            D, I = _search(self.inner, self.facts.kind, queries, k, effort)
            if effort >= most or (I >= 0).all():
                return D, I
            effort = min(2 * effort, most)  # the lists that were looked at hold fewer than k

    def write(self, path: Path) -> str:
        """Write it atomically; the checksum of the file."""
        faiss: Any = importlib.import_module("faiss")

        with media.atomic(path) as sibling:
            faiss.write_index(self.inner, str(sibling))
            checksum = sha256(sibling)
        return checksum

    @classmethod
    def read(cls, path: Path, checksum: str, facts: Any) -> Index:
        """An index that this gallery wrote: FAISS is given no byte whose checksum is not the recorded one."""
        faiss: Any = importlib.import_module("faiss")

        told = known(facts)
        if told is None or not path.is_file() or sha256(path) != checksum:
            raise FileError(f"{path}: missing, damaged or not the one that this gallery wrote")
        try:
            inner = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            raise FileError(f"{path}: cannot be read by this FAISS: {(str(error) or 'memory')[:200]}") from None
        if not _whole(faiss, inner, told):
            raise FileError(f"{path}: damaged, or not an index that this gallery would write")
        return cls(inner, told)

    def entry(self) -> dict[str, Any]:
        """Its facts as JSON."""
        return asdict(self.facts)


def known(value: Any) -> Facts | None:
    """The facts that a manifest tells, or None where it does not tell them."""
    try:
        facts = Facts(**value)
    except TypeError:
        return None
    whole = (facts.rows, facts.effort, facts.queries, facts.lists)
    told = all(type(n) is int and n >= 0 for n in whole) and all(type(x) is float for x in (facts.recall, facts.wanted))
    sane = told and 1 <= facts.effort <= max(facts.lists, MOST_EFFORT) and facts.lists <= facts.rows < 2**40
    return facts if sane and facts.kind in ("ivf", "hnsw") else None


def _whole(faiss: Any, inner: Any, facts: Facts) -> bool:
    """Whether an index that was read is of the kind and size that the manifest tells, and its links lead somewhere.

    FAISS believes what it reads: a link beyond the last row, which a file can hold, would be followed.
    """
    if facts.kind == "ivf":
        fits = isinstance(inner, faiss.IndexIVFScalarQuantizer) and inner.is_trained and inner.nlist == facts.lists
        return bool(fits and inner.ntotal == facts.rows and inner.quantizer.ntotal == inner.nlist)
    graph = faiss.downcast_index(inner.index) if isinstance(inner, faiss.IndexIDMap2) else None
    if not isinstance(graph, faiss.IndexHNSWFlat) or not inner.ntotal == graph.ntotal == facts.rows:
        return False
    return _linked(faiss, graph.hnsw, facts.rows)


def _linked(faiss: Any, hnsw: Any, rows: int) -> bool:
    """Whether every node has its level and its links, and every link is a row or none."""
    levels, offsets, links = (faiss.vector_to_array(v) for v in (hnsw.levels, hnsw.offsets, hnsw.neighbors))
    per_level = faiss.vector_to_array(hnsw.cum_nneighbor_per_level)
    if len(levels) != rows or len(offsets) != rows + 1 or not len(per_level) or (np.diff(per_level) < 0).any():
        return False
    if levels.min() < 1 or levels.max() >= len(per_level) or not 0 <= hnsw.max_level < len(per_level) - 1:
        return False
    starts = np.concatenate([[0], np.cumsum(per_level[levels].astype(np.int64))])
    entry = hnsw.entry_point
    fits = (offsets == starts).all() and len(links) == starts[-1] and 0 <= entry < rows
    return bool(fits and (links >= -1).all() and (links < rows).all() and hnsw.max_level == levels[entry] - 1)


def chosen_kind(kind: str, rows: int) -> str:
    """The kind that `kind` means for this many rows."""
    if kind == "auto":
        return "flat" if rows <= FLAT_UNTIL else "ivf"
    return "flat" if rows < LEAST_ROWS else kind


def build(kind: str, rows: Gathered, recall: float, *, seed: int = 0) -> Index:
    """An index of a kind, tuned until recall@10 on rows that it has not seen reaches `recall`; then they join it."""
    if kind not in ("ivf", "hnsw"):
        raise InputError(f'kind: expected "ivf" or "hnsw", got {kind!r}')
    rng = np.random.default_rng(seed)
    held = np.sort(rng.choice(len(rows), min(HELD_OUT, len(rows) // 4), replace=False))
    rest = np.setdiff1d(np.arange(len(rows)), held)
    inner, lists = _trained(kind, rows, rest, rng)
    _add(inner, rows.blocks(rest))
    facts = _tuned(inner, kind, rows, held, rest, recall, lists)
    _add(inner, rows.blocks(held))
    return Index(inner, facts)


def _trained(kind: str, rows: Gathered, rest: Ids, rng: np.random.Generator) -> tuple[Any, int]:
    """An empty index, and its number of lists. IVF keeps 16 bits a number: the rows themselves settle the order."""
    faiss: Any = importlib.import_module("faiss")

    d = rows.parts[0][0].shape[1]
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(d, LINKS)
        graph.hnsw.efConstruction = EFFORT
        return faiss.IndexIDMap2(graph), 0
    lists = max(1, min(int(4 * np.sqrt(len(rest))), len(rest) // PER_LIST))
    sample = np.sort(rng.choice(rest, min(len(rest), PER_LIST * lists), replace=False))
    centres = faiss.IndexFlatL2(d)
    inner = faiss.IndexIVFScalarQuantizer(centres, d, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2, False)
    inner.cp.niter, inner.cp.min_points_per_centroid = ROUNDS, 1
    inner.train(rows.take(sample))
    return inner, lists


def _add(inner: Any, blocks: Iterable[tuple[Ids, Rows]]) -> None:
    for ids, rows in blocks:
        inner.add_with_ids(rows, ids)


def _tuned(inner: Any, kind: str, rows: Gathered, held: Ids, rest: Ids, wanted: float, lists: int) -> Facts:
    """The least effort that reaches the wanted recall on one half of the held-out rows; the recall on the other."""
    queries = rows.take(held)
    truth = exact(rows.blocks(rest), queries, AT)[1]
    tune, report = slice(0, None, 2), slice(1, None, 2)
    effort, most = 1, lists if kind == "ivf" else MOST_EFFORT
    while effort < most and _recall(inner, kind, queries[tune], truth[tune], effort) < wanted:
        effort = min(2 * effort, most)
    measured = _recall(inner, kind, queries[report], truth[report], effort)
    return Facts(kind, len(rows), effort, measured, wanted, len(held[report]), lists)


def _recall(inner: Any, kind: str, queries: Rows, truth: Ids, effort: int) -> float:
    """The mean share of the true nearest ten that a search finds."""
    found = _search(inner, kind, np.ascontiguousarray(queries), AT, effort)[1]
    return float(np.mean([len(np.intersect1d(a, b)) / AT for a, b in zip(found, truth, strict=True)]))


def _search(inner: Any, kind: str, queries: Rows, k: int, effort: int) -> tuple[NDArray[np.float32], Ids]:
    faiss: Any = importlib.import_module("faiss")

    ivf = kind == "ivf"
    params = faiss.SearchParametersIVF(nprobe=effort) if ivf else faiss.SearchParametersHNSW(efSearch=max(effort, k))
    if queries.shape[1] != inner.d:
        raise FileError(f"index: damaged, it holds rows of {inner.d} numbers where the gallery has {queries.shape[1]}")
    x = np.ascontiguousarray(queries, dtype=np.float32)
    D, I = np.empty((len(x), k), dtype=np.float32), np.empty((len(x), k), dtype=np.int64)
    try:
        # search_c, not search: faiss.contrib.torch_utils replaces Index.search for the whole process by one that takes
        # no params, and pytorch-metric-learning imports it
        inner.search_c(len(x), faiss.swig_ptr(x), k, faiss.swig_ptr(D), faiss.swig_ptr(I), params)
    except (RuntimeError, MemoryError) as error:
        raise FileError(f"index: damaged, it cannot be searched: {(str(error) or 'memory')[:200]}") from None
    return D, I
