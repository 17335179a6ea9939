"""Photos of the same places in another season, light or year: which pairs have a geometry, and which only seem to.

Four collections lie under places/ of $LIKEWISE_DATA, each with reference/NNN.jpg and query/NNN.jpg. The same number is
the same place; of kudamm truth.csv says which (but see SHIFTED), and where the true photo is not there, the one before
it is taken.
Unrelated pairs are a photo of one collection with one of another; and within a collection numbers 10 and more apart
(campus, nordland), other cameras (webcams), numbers 60 and more apart (kudamm). kudamm is one straight street, whose
church, trees and lane marks show in photos far apart: its own far pairs are counted apart and choose nothing.
"""

from __future__ import annotations

import csv
import io
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np

from likewise import inputs
from likewise.errors import FileError, InputError
from likewise.papers import Record, data_folder, kept, mean_error, read_text, slug
from likewise.papers.life.layouts import FilePath, random_homography
from likewise.pixels import robust
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.matching import match

Pair: TypeAlias = tuple[Path, Path]
Group: TypeAlias = dict[str, list[Any]]

COLLECTIONS = ("campus", "nordland", "webcams", "kudamm")
APART = {"campus": 10, "nordland": 10, "webcams": 1, "kudamm": 60}
"""How far apart the numbers of two photos of a collection are, at least, that show nothing in common."""
SHIFTED = 64
"""truth.csv of kudamm names the queries by numbers that are 64 too large. By the file as it stands no pair of 79 had a
geometry; the references that do have one follow one another along the street, within 2 of what the file says of a
query 64 further on (15 of 17 pairs; no other shift has more), and by eye show the same crossings. 47 have one."""
WITHIN = {"campus": 300, "nordland": 300, "webcams": 500, "kudamm": 100}
ACROSS = 170
"""Unrelated pairs within a collection and of each two: 2,120 without kudamm's own."""


# --------------------------------------------------------------------------------------------------------------- pairs


def places(folder: FilePath, name: str) -> tuple[list[Pair], dict[str, list[Pair]]]:
    """The true pairs (reference, query) of a collection, and unrelated ones: its own, and with each other collection.

    Parameters
    ----------
    folder : path
        The folder that holds the collections.
    name : {"campus", "nordland", "webcams", "kudamm"}
        The collection.

    Returns
    -------
    tuple
        The true pairs; and unrelated pairs by what they are of: "campus", "campus-nordland" and so on. Those of two
        collections are the same for both.

    Raises
    ------
    InputError, FileError
        Where there is no such collection, or no photo in it.

    Examples
    --------
    >>> true, unrelated = places("places", "campus")  # doctest: +SKIP
    >>> len(true), sorted(unrelated)  # doctest: +SKIP
    (100, ['campus', 'campus-kudamm', 'campus-nordland', 'campus-webcams'])
    """
    if name not in COLLECTIONS:
        raise InputError(f"name: expected {', '.join(COLLECTIONS)}, got {name!r}")
    root = Path(folder)
    true, where = _true_pairs(root / name)
    references = _photos(root / name, "reference")
    far = [(r, q) for q, at in where for r in references if abs(int(r.stem) - at) >= APART[name]]
    unrelated = {name: _drawn(far, WITHIN[name], name)}
    for one, two in combinations(COLLECTIONS, 2):
        if name in (one, two) and all((root / c).is_dir() for c in (one, two)):
            both = [_photos(root / c, "reference") + _photos(root / c, "query") for c in (one, two)]
            key = f"{one}-{two}"
            rng = np.random.default_rng(zlib.crc32(key.encode()))
            picks = zip(*(rng.choice(len(p), ACROSS, replace=len(p) < ACROSS) for p in both), strict=True)
            unrelated[key] = [(both[0][i], both[1][j]) for i, j in picks]
    return true, unrelated


def _true_pairs(root: Path) -> tuple[list[Pair], list[tuple[Path, int]]]:
    """The true pairs, and each query with its number along the references."""
    references = {int(f.stem): f for f in _photos(root, "reference")}
    queries = {int(f.stem): f for f in _photos(root, "query")}
    if (root / "truth.csv").is_file():
        rows = csv.DictReader(io.StringIO(read_text(root / "truth.csv")))
        numbers = [(int(row["query"]) - SHIFTED, int(row["reference"])) for row in rows]
    else:
        numbers = [(n, n) for n in queries]
    true = []
    for q, r in numbers:
        there = next((references[n] for n in (r, r - 1, r + 1) if n in references), None)
        if there is not None and q in queries:
            true.append((there, queries[q]))
    if not true:
        raise FileError(f"{root}: no photo of query/ has one of the same place in reference/")
    return true, [(queries[q], r) for q, r in numbers if q in queries]


def _photos(root: Path, side: str) -> list[Path]:
    files = sorted(f for f in (root / side).glob("*.jpg") if f.stem.isdecimal())
    if not files:
        raise FileError(f"{root / side}: no photo 000.jpg, 001.jpg …")
    return files


def _drawn(pairs: list[Pair], n: int | None, key: str) -> list[Pair]:
    """n of the pairs in a random order, the same ones each time."""
    return [pairs[i] for i in np.random.default_rng(zlib.crc32(key.encode())).permutation(len(pairs))[:n]]


def is_still(a: FilePath, b: FilePath) -> bool:
    """Whether a camera has not moved, to a pixel: the edges of both photos lie on each other where nothing is shifted.

    Directions of edges, whose sign does not count, are the same by day and by night, and no feature whose matches are
    measured with such pairs has a say. They must clearly agree in the whole photo and in two of its quarters at least,
    so that a camera that turned or zoomed is left out, too. 87 of 303 webcams are still; "hardly moves" is not enough
    where 3 px count: of those with 50 matches or more on a plane, four in ten moved by more than 10 px.
    """
    one, two = (_edges(inputs.image(x).tensor) for x in (a, b))
    h, w = one.shape[:2]
    quarters = [np.s_[y : y + h // 2, x : x + w // 2] for y in (0, h - h // 2) for x in (0, w - w // 2)]
    whole = _shift(one, two, 1.5)
    parts = [s for part in quarters if (s := _shift(one[part], two[part], 1.0)) is not None]
    return whole is not None and len(parts) >= 2 and all(max(map(abs, s)) <= 1 for s in (whole, *parts))


def _edges(image: Any) -> Any:
    """cos 2θ and sin 2θ (h, w, 2) of the directions of edges, 0 where there is none."""
    grey = cv2.GaussianBlur(image.mean(0).numpy(), (0, 0), 1.0)
    x, y = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    weight = 1 / (np.hypot(x, y) + 0.05) ** 2
    return np.dstack([(x * x - y * y) * weight, 2 * x * y * weight]).astype(np.float32)


def _shift(a: Any, b: Any, clear: float) -> tuple[int, int] | None:
    """By how many pixels b's edges are shifted, up to 12, or None where the best is not better by `clear` standard
    deviations than all that is not next to it."""
    r = max(1, min(12, min(a.shape[:2]) // 6))
    scores = cv2.matchTemplate(b, np.ascontiguousarray(a[r:-r, r:-r]), cv2.TM_CCORR)
    y, x = np.unravel_index(scores.argmax(), scores.shape)
    others = scores.copy()
    others[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = -np.inf
    if scores[y, x] - others.max() < clear * scores.std():
        return None
    return int(x) - r, int(y) - r


def webcams_with_homographies(folder: FilePath, n: int = 60, *, seed: int = 0) -> FlowDataset:
    """Webcams months apart, the later photo seen through a random homography: real light with exact dense truth.

    Cameras that moved are left out (`is_still`).

    Parameters
    ----------
    folder : path
        The folder that holds webcams/.
    n : int
        How many of its still cameras, drawn with the seed, whose photos are of one size; all where there are fewer.
    seed : int
        What cameras and homographies depend on.

    Returns
    -------
    FlowDataset
        Pairs of which the homography is known; their longest side is 480 px at most.

    Raises
    ------
    InputError
        Where n is below 1.

    Examples
    --------
    >>> webcams_with_homographies("places", 20)  # doctest: +SKIP
    FlowDataset(webcams + H: 20 pairs in 1 groups)
    """
    if n < 1:
        raise InputError(f"n: expected a number of cameras ≥ 1, got {n}")
    drawn = _drawn(_true_pairs(Path(folder) / "webcams")[0], None, f"webcams {seed}")
    items = [
        FlowPair(
            a, b, f"webcam {a.stem}", "webcams + H", homography=np.eye(3),
            seen_through=partial(random_homography, seed=(seed, int(a.stem))),
        )
        for a, b in islice((p for p in drawn if len({inputs.image(x).size for x in p}) == 1 and is_still(*p)), n)
    ]  # fmt: skip
    return FlowDataset(tuple(items), "webcams + H")


# --------------------------------------------------------------------------------------------------------------- table


def geometry(options: Any, matcher: Callable[[Any, Any], Any] = match) -> Record:
    """A row a collection: true pairs with a geometry, false alarms, both also by a rule chosen on the others, CPU-s.

    Parameters
    ----------
    options : object with .data and .cells
        The folder of real data, and the folder where finished parts are kept ("" for none).
    matcher : callable
        Gives the Matches of two images.

    Returns
    -------
    Record
        "geometry": the share of true pairs with one; "false alarms" of "unrelated" pairs that the collection is part
        of. "left out": the share where the threshold of log_nfa is what 1 in 1,000 of the unrelated pairs of the
        *other* collections reach, and its false alarms here. "baseline": MAGSAC's inliers above the most of unrelated
        pairs.
    """
    root = data_folder(options.data) / "places"
    cells = Path(options.cells) if options.cells else None
    true, unrelated = dict[str, Group](), dict[str, Group]()
    for name in COLLECTIONS:
        own, others = places(root, name)
        true[name] = _measured(own, f"true {name}", cells, matcher)
        for key, pairs in others.items():
            if key not in unrelated:
                unrelated[key] = _measured(pairs, f"unrelated {key}", cells, matcher)
    return Record(
        ["collection", "pairs", "geometry", "unrelated", "false alarms", "left out", "false alarms, left out",
         "baseline", "CPU-s a pair", "own far pairs with a geometry"],
        [_row(name, true[name], unrelated) for name in COLLECTIONS],
        "kudamm's own far pairs share what is at the end of the street; they are in no other column.",
    )  # fmt: skip


def _measured(pairs: list[Pair], name: str, cells: Path | None, matcher: Callable[[Any, Any], Any]) -> Group:
    """log_nfa, MAGSAC's inliers and CPU seconds of each pair."""
    file = None if cells is None else cells / f"{slug('geometry ' + name)}.json"
    return kept(file, lambda: _columns(_measure(*pair, matcher) for pair in pairs))


def _measure(a: Path, b: Path, matcher: Callable[[Any, Any], Any]) -> tuple[float, int, float]:
    began = time.process_time()
    matches = matcher(a, b)
    models = matches.homography(), matches.fundamental()
    seconds = time.process_time() - began
    return min(m.log_nfa for m in models), _magsac(np.asarray(matches.a), np.asarray(matches.b)), seconds


def _columns(rows: Iterable[tuple[float, int, float]]) -> Group:
    return {k: list(v) for k, v in zip(("log_nfa", "inliers", "seconds"), zip(*rows, strict=True), strict=True)}


def _magsac(a: Any, b: Any) -> int:
    """Inliers of OpenCV's homography to 3 px, whatever they are worth."""
    mask = cv2.findHomography(a, b, cv2.USAC_MAGSAC, 3.0)[1] if len(a) >= 4 else None
    return 0 if mask is None else int(mask.sum())


def _row(name: str, true: Group, unrelated: dict[str, Group]) -> dict[str, Any]:
    def gathered(what: str, own: bool) -> Any:
        groups = [g for key, g in unrelated.items() if (name in key.split("-")) == own and key != "kudamm"]
        return np.array([value for g in groups for value in g[what]])

    score, ours, theirs = np.array(true["log_nfa"]), gathered("log_nfa", True), gathered("log_nfa", False)
    limit = min(float(np.sort(theirs)[len(theirs) // 1000]), 0.0)  # fewer of the others than 1 in 1,000 are below it
    most = max(gathered("inliers", True).max(), gathered("inliers", False).max())
    row = {
        "collection": name,
        "pairs": len(score),
        "geometry": float((score <= robust.LOG_NFA).mean()),
        "unrelated": len(ours),
        "false alarms": int((ours <= robust.LOG_NFA).sum()),
        "left out": float((score < limit).mean()),
        "false alarms, left out": int((ours < limit).sum()),
        "baseline": float((np.array(true["inliers"]) > most).mean()),
        "CPU-s a pair": mean_error(true["seconds"])[0],
    }
    if name == "kudamm" and "kudamm" in unrelated:
        row["own far pairs with a geometry"] = float((np.array(unrelated[name]["log_nfa"]) <= robust.LOG_NFA).mean())
    return row
