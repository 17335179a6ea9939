"""How unusual the distance of two albums is: its place among unrelated albums, of what ships or of the user's own.

A distance depends on how many photos each album has, and on how varied they are: of a railway all photos are alike, and
so are unrelated stretches of it. So it is taken in units of the spread within the two albums, and its place among
unrelated pairs of the same sizes is a percentile. Below 5 is rare; 50 is what unrelated albums are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from likewise import numeric
from likewise.types import Array, Signature

WEIGHTS = Path(__file__).parents[1] / "weights" / "sets-reference.json"
FLOOR = 0.4
"""The least spread that counts: photos of one burst hardly differ, and other bursts of the same would be far apart.

Unrelated railway stretches, the narrowest albums of six collections, have a spread of .45."""
NEAR = 25.0
"""The percentile up to which a sentence says "nearer": above, a distance tells little."""
SINGLE = "a single photo is no album"
LEAST, ALBUMS, PAIRS = 10, 40, 200
"""The fewest albums of a user's own that are a reference; how many are taken at most, and how many pairs of them."""


@dataclass(frozen=True)
class Scale:
    """How unusual a distance is, in a sentence; false, with the `reason`, where that cannot be said.

    Attributes
    ----------
    percentile : float or None
        Of albums: how many of 100 unrelated pairs of these sizes are as near as these two, or nearer. Small is rare.
    times : float or None
        Of collections: how many times as far apart they are as random halves of either one.
    sentence : str
    reference : str
        What it was compared with, and how many pairs of it.
    reason : str
        Why there is none, or why it is not of the user's own index.

    Examples
    --------
    >>> bool(Scale(reason="features of your own")), among(0.2, [0.9, 1.0, 1.1], "3 pairs").percentile
    (False, 25.0)
    """

    percentile: float | None = None
    times: float | None = None
    sentence: str = ""
    reference: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.sentence)

    def __str__(self) -> str:
        note = f"; {self.reason}" if self and self.reason else ""
        return f"{self.sentence} ({self.reference}{note})" if self else f"no scale: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain values."""
        return asdict(self)


def ratio(distance: float, p: Signature, q: Signature) -> float:
    """A distance in units of the spread within two sets: the mean squared distance of two points of one."""
    return distance / max((_spread(p) + _spread(q)) / 2, FLOOR)


def _spread(s: Signature) -> float:
    w = s.weights
    within = float(w @ numeric.squared_distances(s.points, s.points) @ w)
    return within / max(1 - float(w @ w), 1e-9)


def among(value: float, unrelated: Sequence[float] | Array, reference: str, reason: str = "") -> Scale:
    """The scale of a value (`ratio`) among those of unrelated pairs: (1 + those not above it) / (1 + all)."""
    many = np.asarray(unrelated, dtype=np.float64)
    return _said(100 * (1 + int((many <= value).sum())) / (1 + len(many)), reference, reason)


def of_albums(distance: float, signed: Sequence[Signature], counts: Sequence[int], reason: str = "") -> Scale:
    """The scale of the default distance of two albums, of so many photos, in the reference that ships."""
    if min(counts) < 2:
        return Scale(reason=SINGLE)
    return shipped(ratio(distance, signed[0], signed[1]), counts, reason)


def shipped(value: float, sizes: Sequence[int], reason: str = "", kept: Mapping[str, Any] | None = None) -> Scale:
    """The scale of a value (`ratio`) of albums of two sizes in the reference that ships.

    Of each percentile the reference keeps the nearest of its collections, so that a user's own, whose kind it does not
    know, is rather called far than near. `weights/sets-reference.md` says what it holds.
    """
    kept = _reference() if kept is None else kept
    at = np.log2(kept["sizes"])
    (i, u), (j, v) = (_between(at, np.log2(size)) for size in sizes)
    table = np.log(kept["quantiles"])  # (sizes, sizes, levels)
    row = (1 - u) * table[i] + u * table[i + 1]
    quantiles = (1 - v) * row[j] + v * row[j + 1]
    levels = np.asarray(kept["levels"])
    return _said(float(np.interp(np.log(max(value, 1e-9)), quantiles, levels)), kept["reference"], reason)


def _between(at: Array, x: float) -> tuple[int, float]:
    """Between which two of the sizes, and how far from the first; beyond the last as at the last."""
    i = int(np.clip(np.searchsorted(at, x) - 1, 0, len(at) - 2))
    return i, float(np.clip((x - at[i]) / (at[i + 1] - at[i]), 0, 1))


@functools.cache
def _reference() -> Mapping[str, Any]:
    return read(WEIGHTS.read_text(encoding="utf-8"))


def read(text: str) -> Mapping[str, Any]:
    """A reference: of each two sizes, whichever comes first, the quantiles at its levels."""
    kept = json.loads(text)
    sizes, levels = len(kept["sizes"]), len(kept["levels"])
    table = np.zeros((sizes, sizes, levels))
    for (m, n), row in zip(combinations_with_replacement(range(sizes), 2), kept["quantiles"], strict=True):
        table[m, n] = table[n, m] = row
    return {**kept, "quantiles": table}


def _said(percentile: float, reference: str, reason: str) -> Scale:
    words = "as far apart as unrelated albums are"
    if percentile <= NEAR:
        words = f"nearer than {min(int(100 - percentile), 99)} % of unrelated albums of this size"
    return Scale(round(percentile, 2), None, words, reference, reason)


# ── albums of the user's own ──────────────────────────────────────────────────────────────────────────────────────


def albums(names: Sequence[str], m: int, n: int, *, leave_out: set[str], seed: int = 0) -> tuple[list[Any], str]:
    """Albums of an index, each as the names of its m and of its n photos; and what they are, or why there are none.

    Folders that hold enough photos are albums; where all photos lie in one, it is cut into runs in the order of names.
    A folder or a run that holds one of `leave_out` is none.
    """
    rng, size = np.random.default_rng(seed), max(m, n)
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(str(PurePosixPath(name).parent), []).append(name)
    if len(folders) == 1:
        only = folders.popitem()[1]
        # each second run: neighbours may show the same
        parts = [only[i : i + size] for i in range(0, len(only) - size + 1, 2 * size)]
        what = f"runs of {size} photos"
    else:
        parts, what = list(folders.values()), "folders"
    parts = [part for part in parts if len(part) >= size and leave_out.isdisjoint(part)]
    if len(parts) < LEAST:
        return [], f"only {len(parts)} other {what} of the index hold {size} photos, {LEAST} are needed"
    chosen = [parts[i] for i in sorted(rng.permutation(len(parts))[:ALBUMS])]
    starts = [int(rng.integers(len(part) - size + 1)) for part in chosen]
    return [tuple(part[i : i + k] for k in (m, n)) for part, i in zip(chosen, starts, strict=True)], what


def pairs(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Pairs of different albums, each at most once, at most PAIRS of them."""
    every = [(i, j) for i in range(count) for j in range(count) if i != j]
    rng = np.random.default_rng(seed)
    return [every[i] for i in sorted(rng.permutation(len(every))[:PAIRS])]
