"""Places found again: each collection searched with projections and verdicts that saw no photo of it.

Four collections lie under places/ of the data folder, each with reference/NNN.jpg and query/NNN.jpg. Gallery: every
reference of all four, and birds as distractors. A hit is right where its number is that of the query (webcams) or at
most 2 from it; numbers up to APART away show part of the same place or not, and are left out of the verdict's tables.
For each collection the centres and axes of VLAD, the axes of the embedding and the coefficients of the verdict are
fitted on the other three.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss as faiss_stubs
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from likewise import media
from likewise.images.embedder import default
from likewise.papers import Record, data_folder, mean_error, read_text
from likewise.papers.life.places import SHIFTED
from likewise.papers.places.copies import TWINS
from likewise.search import local
from likewise.search.local import Local, Projection, alike, unit
from likewise.search.verdict import DIFFERENT, PARTS, SAME, Judge, measured
from likewise.search.verify import Verifier
from likewise.train.options import option
from likewise.types import Image

faiss: Any = faiss_stubs
Floats = NDArray[np.float32]
Wide = NDArray[np.float64]

COLLECTIONS = ("campus", "nordland", "webcams", "kudamm")
NEAR, APART = {"webcams": 0}, {"campus": 10, "nordland": 10, "webcams": 1, "kudamm": 60}
"""How far the number of a right hit may be (2 unless given), and from where on a photo is of another place."""
CENTRES, AXES, WHITENED, SAMPLE = 64, 512, 256, 100_000
"""Centres and axes of VLAD, axes of the embedding that are half whitened, descriptors that k-means sees."""
SHORTLIST, VERIFIED = 100, 10
SENSE = {"quick": (-1, 1), "verified": (1, 1, 1, 1, 1)}
"""No weight may act against the sense of what it weighs: distance and alike; geometry, inliers and how far it is beyond
chance, or how near it came and matches."""
MEASURED = {"quick": slice(0, PARTS["quick"]), "verified": slice(PARTS["quick"], sum(PARTS.values()))}
"""Where in a row of what was measured each part of the model has its numbers."""
L2 = 1e-4
"""What a squared weight costs against the mean log loss of a pair."""
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class Options:
    """What the tables of places read and keep."""

    data: str = option("", "folder of the data; by default $LIKEWISE_DATA")
    cells: str = option("", "folder for what was measured, so that a run resumes")
    distractors: int = option(2000, "photos of birds in the gallery", low=0)
    seeds: int = option(3, "k-means, from so many seeds", low=1)
    verified: int = option(VERIFIED, "candidates of a query that are verified", low=1)


@dataclass(frozen=True, eq=False)
class Photos:
    """Photos with what an index keeps of them: embeddings (n, d) and local features."""

    paths: list[str]
    embeddings: Floats
    features: list[Local]

    def __len__(self) -> int:
        return len(self.paths)


def described(paths: Sequence[Path], name: str, cells: Path | None) -> Photos:
    """Embeddings and features of photos, kept in a file of the cells."""
    file = None if cells is None else cells / f"{name}-{len(paths)}.npz"
    if file is not None and file.is_file():
        kept = media.load_arrays(file)
        features = [Local.from_bytes(kept["data"][a:b].tobytes()) for a, b in kept["spans"]]
        return Photos([str(p) for p in paths], kept["embeddings"], features)
    embeddings = np.asarray(default().embed([str(p) for p in paths]))
    features = [local.extract(Image(path)) for path in paths]
    if file is not None:
        blobs = [one.to_bytes() for one in features]
        ends = np.cumsum([0, *map(len, blobs)])
        with media.atomic(file) as sibling, open(sibling, "wb") as stream:
            data = np.frombuffer(b"".join(blobs), np.uint8)
            np.savez(stream, embeddings=embeddings, data=data, spans=np.column_stack([ends[:-1], ends[1:]]))
    return Photos([str(p) for p in paths], embeddings, features)


@dataclass(frozen=True, eq=False)
class Collected:
    """A collection: its references and queries, and for each query how far each reference's number is from its own."""

    name: str
    references: Photos
    queries: Photos
    apart: NDArray[np.int64]

    def right(self) -> NDArray[np.bool_]:
        """Which references are of a query's place."""
        return np.asarray(self.apart <= NEAR.get(self.name, 2))

    def wrong(self) -> NDArray[np.bool_]:
        """Which are certainly not; cameras that look at the same are left out."""
        far = self.apart >= APART[self.name]
        if self.name == "webcams":
            asked, there = ([int(Path(p).stem) for p in side.paths] for side in (self.queries, self.references))
            twins = {frozenset(pair) for pair in TWINS.items()}
            far &= np.array([[frozenset((q, r)) not in twins for r in there] for q in asked])
        return np.asarray(far)


def collected(root: Path, name: str, cells: Path | None) -> Collected:
    """A collection of places/."""
    sides = {side: sorted((root / name / side).glob("*.jpg")) for side in ("reference", "query")}
    numbers = {side: {int(f.stem): f for f in files} for side, files in sides.items()}
    truth = {n: n for n in numbers["query"]}
    if (root / name / "truth.csv").is_file():
        rows = csv.DictReader(io.StringIO(read_text(root / name / "truth.csv")))
        truth = {int(row["query"]) - SHIFTED: int(row["reference"]) for row in rows}
    asked = [n for n in sorted(numbers["query"]) if n in truth]
    references, queries = [*numbers["reference"].values()], [numbers["query"][n] for n in asked]
    at = np.array([int(f.stem) for f in references])
    apart = np.abs(np.array([truth[n] for n in asked])[:, None] - at)
    return Collected(
        name, described(references, f"{name}-reference", cells), described(queries, f"{name}-query", cells), apart
    )


def distractors(root: Path, n: int, cells: Path | None) -> Photos:
    """n photos of birds, evenly taken."""
    files = sorted((root / "cub200-232").glob("*/*"))
    return described(files[:: max(1, len(files) // n)][:n] if n else [], "birds", cells)


# ── fitting ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_projection(photos: Sequence[Photos], others: Photos, seed: int = 0) -> Projection:
    """Centres of VLAD from places; axes, half whitened, from these and the others."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([one.descriptors for some in photos for one in some.features])
    kmeans = faiss.Kmeans(rows.shape[1], CENTRES, niter=25, seed=seed, min_points_per_centroid=1)
    kmeans.train(np.ascontiguousarray(rows[rng.choice(len(rows), min(SAMPLE, len(rows)), replace=False)]))
    every = [*photos, others] if len(others) else [*photos]
    vlads = np.concatenate([vlads_of(some, kmeans.centroids) for some in every])
    embeddings = np.concatenate([some.embeddings for some in every])
    mean, axes, spread = principal(vlads, AXES)
    embedding_mean, embedding_axes, wide = principal(embeddings, WHITENED + 1)
    gains = np.sqrt(wide[-1] / wide[:-1])
    return Projection(
        kmeans.centroids, mean, (axes / np.sqrt(spread)[:, None]).astype(np.float32),
        embedding_mean, embedding_axes[:-1], gains.astype(np.float32),
    )  # fmt: skip


def principal(rows: Floats, most: int) -> tuple[Floats, Floats, Floats]:
    """Mean, the largest principal axes and the standard deviations along them."""
    mean = rows.mean(axis=0)
    centred = (rows - mean).astype(np.float64)
    tall = len(rows) >= rows.shape[1]
    squared, vectors = np.linalg.eigh(centred.T @ centred if tall else centred @ centred.T)
    squared, vectors = np.maximum(squared[::-1], 0), vectors[:, ::-1]
    many = min(most, int((squared > 1e-12 * squared[0]).sum()))
    singular = np.sqrt(squared[:many])
    axes = vectors[:, :many].T if tall else (vectors[:, :many] / singular).T @ centred
    return mean, axes.astype(np.float32), (singular / np.sqrt(len(rows))).astype(np.float32)


def vlads_of(photos: Photos, centres: Floats) -> Floats:
    """The VLAD of each photo."""
    return np.stack([local.vlad(one, centres) for one in photos.features])


def fit(x: Wide, y: NDArray[np.bool_], weight: Wide, senses: Sequence[int]) -> list[float]:
    """Intercept and weights of a logistic model of least log loss, each weight of its sense."""
    X, sign = np.column_stack([np.ones(len(x)), x]), np.where(y, 1.0, -1.0)

    def loss(w: Wide) -> tuple[float, Wide]:
        z = sign * (X @ w)
        slope = -(weight * sign / (1 + np.exp(np.clip(z, -50, 50)))) @ X
        free = np.concatenate([[0.0], w[1:]])
        return float(weight @ np.logaddexp(0, -z) + L2 * free @ free), slope + 2 * L2 * free

    bounds: Any = [(None, None)] + [(0, None) if sense > 0 else (None, 0) for sense in senses]
    return [float(v) for v in minimize(loss, np.zeros(X.shape[1]), jac=True, bounds=bounds).x]


def fit_judge(groups: Iterable[tuple[Wide, NDArray[np.bool_]]]) -> Judge:
    """The verdict's coefficients: every collection counts alike; pairs as often right as among its candidates."""
    pairs = [(x, y) for x, y in groups if len(x)]
    x, y = np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
    weight = np.concatenate([np.full(len(some), 1 / len(some)) for some, _ in pairs]) / len(pairs)
    return Judge({name: fit(x[:, columns], y, weight, SENSE[name]) for name, columns in MEASURED.items()})


# ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Asked:
    """The candidates of one query, nearest first: distance, features alike, right, wrong, and what was measured."""

    gallery: NDArray[np.int64]
    distance: Wide
    alike: NDArray[np.int64]
    right: NDArray[np.bool_]
    wrong: NDArray[np.bool_]

    def x(self) -> Wide:
        """What the verdict is given without evidence."""
        return np.array([measured(d, int(n), None)[1] for d, n in zip(self.distance, self.alike, strict=True)])


def rows_of(photos: Photos, p: Projection) -> dict[str, Floats]:
    """The vectors of photos by what they are made of."""
    plain, white, vlads = unit(photos.embeddings), p.whiten(photos.embeddings), p.project(vlads_of(photos, p.centres))
    both = unit(np.concatenate([white, vlads], axis=1))
    return {"embedding": plain, "embedding, half whitened": white, "VLAD": vlads, "joined": both}


def ask(one: Collected, gallery: list[Photos], p: Projection) -> tuple[dict[str, Any], list[Asked]]:
    """Ranks of the first right hit by each vector; the candidates by the joined one with the features alike."""
    every = [rows_of(photos, p) for photos in (one.references, *gallery)]
    features = [f for photos in (one.references, *gallery) for f in photos.features]
    asked, own = rows_of(one.queries, p), len(one.references)
    right = np.pad(one.right(), ((0, 0), (0, len(features) - own)))
    wrong = np.pad(one.wrong(), ((0, 0), (0, len(features) - own)), constant_values=True)
    ranks, found = dict[str, Any](), list[Asked]()
    for name, queries in asked.items():
        similar = queries @ np.concatenate([rows[name] for rows in every]).T
        order = np.argsort(-similar, axis=1, kind="stable")
        ranks[name] = [int(np.argmax(right[i][order[i]])) for i in range(len(queries))]
        if name == "joined":
            for i, nearest in enumerate(order[:, :SHORTLIST]):
                counts = np.array([alike(one.queries.features[i], features[j]) for j in nearest])
                apart = np.sqrt(np.maximum(2 - 2 * similar[i][nearest].astype(np.float64), 0))
                found.append(Asked(nearest, apart, counts, right[i][nearest], wrong[i][nearest]))
    return ranks, found


def verified(one: Collected, paths: list[str], features: list[Local], asked: Asked, i: int, chosen: Any) -> list[Any]:
    """What is measured of chosen candidates of query i, with CPU seconds."""
    began, verifier = time.process_time(), Verifier(one.queries.paths[i])
    rows = []
    for k in chosen:
        j = int(asked.gallery[k])
        evidence = verifier(Path(paths[j]), features[j])
        x = [v for e in (None, evidence) for v in measured(float(asked.distance[k]), int(asked.alike[k]), e)[1]]
        exact = j < one.apart.shape[1] and int(one.apart[i, j]) == 0
        rows.append([*x, exact, bool(asked.right[k]), bool(asked.wrong[k]), evidence.few])
    return [rows, time.process_time() - began]


def measure(options: Options, seed: int = 0) -> dict[str, Any]:
    """For each collection, by projections that did not see it: ranks, candidates, and what was verified of them."""
    data, cells = data_folder(options.data), Path(options.cells) if options.cells else None
    every = {name: collected(data / "places", name, cells) for name in COLLECTIONS}
    birds = distractors(data, options.distractors, cells)
    ranks, asked = dict[str, Any](), dict[str, list[Asked]]()
    for name, one in every.items():
        others = [c for c in every.values() if c is not one]
        p = fit_projection([photos for c in others for photos in (c.references, c.queries)], birds, seed)
        ranks[name], asked[name] = ask(one, [*(c.references for c in others), birds], p)
    return {"every": every, "birds": birds, "ranks": ranks, "asked": asked}


def quick_rows(asked: list[Asked]) -> tuple[Wide, NDArray[np.bool_]]:
    """The first candidates that are certainly right or wrong, as the verdict without evidence sees them."""
    sure = [(a.x()[:VERIFIED], a.right[:VERIFIED], a.wrong[:VERIFIED]) for a in asked]
    x, right, wrong = (np.concatenate(side) for side in zip(*sure, strict=True))
    return x[right | wrong], right[right | wrong]


def shortlist(options: Options) -> Record:
    """The share of queries with a right hit among the first 1, 10, 20, by what finds it; and re-ranked by features.

    Parameters
    ----------
    options : Options

    Returns
    -------
    Record
        A row a collection and method: mean and standard error over k-means' seeds, of collections left out.
    """
    rows = []
    runs = [measure(options, seed) for seed in range(options.seeds)]
    for name in COLLECTIONS:
        methods: dict[str, list[Any]] = {}
        for run in runs:
            for method, ranks in run["ranks"][name].items():
                methods.setdefault(method, []).append([np.mean(np.array(ranks) < k) for k in (1, 10, 20)])
            judge = fit_judge([_wide(*quick_rows(run["asked"][c])) for c in COLLECTIONS if c != name])
            ranks = [_first(a.right[rerank(a, judge)]) for a in run["asked"][name]]
            methods.setdefault("joined, re-ranked", []).append([np.mean(np.array(ranks) < k) for k in (1, 10, 20)])
        for method, values in methods.items():
            row: dict[str, Any] = {"collection": name, "method": method, "queries": len(runs[0]["asked"][name])}
            for k, column in zip((1, 10, 20), np.array(values).T, strict=True):
                row[f"R@{k}"], error = mean_error(column)
                row |= {} if error is None else {f"R@{k} ±": error}
            rows.append(row)
    note = f"Gallery: the references of all four collections and {options.distractors:,} birds."
    return Record(["collection", "method", "queries", "R@1", "R@10", "R@20"], rows, note)


def _wide(x: Wide, y: NDArray[np.bool_]) -> tuple[Wide, NDArray[np.bool_]]:
    return np.pad(x, ((0, 0), (0, PARTS["verified"]))), y


def _first(right: NDArray[np.bool_]) -> int:
    return int(right.argmax()) if right.any() else 10**6


def rerank(asked: Asked, judge: Judge) -> NDArray[np.int64]:
    """The order of candidates by how probable each is without evidence."""
    chances = [judge.probability(float(d), int(n)) for d, n in zip(asked.distance, asked.alike, strict=True)]
    return np.argsort(-np.array(chances), kind="stable")


def harvest(options: Options) -> dict[str, list[Any]]:
    """Of each collection, the rows of its verified candidates, query by query; kept as they are made."""
    cells = Path(options.cells) if options.cells else None
    file = None if cells is None else cells / f"verified-{options.verified}.json"
    kept: dict[str, list[Any]] = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    if all(name in kept for name in COLLECTIONS):
        return kept
    run = measure(options)
    for name, one in run["every"].items():
        if name in kept:
            continue
        judge = fit_judge([_wide(*quick_rows(run["asked"][c])) for c in COLLECTIONS if c != name])
        gallery = [one.references, *(c.references for c in run["every"].values() if c is not one), run["birds"]]
        paths, features = [p for g in gallery for p in g.paths], [f for g in gallery for f in g.features]
        kept[name] = [
            verified(one, paths, features, a, i, rerank(a, judge)[: options.verified].tolist())
            for i, a in enumerate(run["asked"][name])
        ]
        if file is not None:
            media.write_text(file, json.dumps(kept))
    return kept


def verdict(options: Options) -> Record:
    """What verdicts are worth on a collection that they were not fitted on: a row a collection and bin of probability.

    Parameters
    ----------
    options : Options

    Returns
    -------
    Record
        Candidates that are certainly right or wrong, mean probability and share that is right; precision and recall of
        "same"; the share of queries whose first hit is right before and after verification.
    """
    seen = harvest(options)
    data = {name: sure_rows(seen[name]) for name in COLLECTIONS}
    rows = []
    for name in COLLECTIONS:
        judge = fit_judge([(x, y) for other, (x, y, *_) in data.items() if other != name])
        x, y, few = data[name]
        p = np.array([judge.evaluate("verified", row) for row in x[:, MEASURED["verified"]]])
        same = p >= SAME
        queries = [[_said(judge, row) for row in some] for some, _ in seen[name]]
        number = [said for some in queries for said, exact, _ in some if exact]
        known = [some for some in queries if any(right for *_, right in some)]
        rows.append({
            "collection": name, "bin": "all", "candidates": len(p), "probability": float(p.mean()),
            "right": float(y.mean()),
            "precision of same": float(y[same].mean()) if same.any() else 1.0, "recall": float(same[y].mean()),
            "recall, its own number": float(np.mean(number)) if number else 1.0,
            "queries answered": float(np.mean([any(s and right for s, _, right in some) for some in known])),
            "right called different": float(((p <= DIFFERENT) & ~few)[y].mean()),
            "R@1 re-ranked": float(np.mean([some[0][2] for some in queries])),
            "R@1 verified": first_right(seen[name], judge), "CPU-s a query": float(np.mean([s for _, s in seen[name]])),
        })  # fmt: skip
        for low, high in pairwise(BINS):
            inside = (p >= low) & ((p < high) | (high == 1))
            if inside.any():
                rows.append(
                    {"collection": name, "bin": f"{low:g}–{high:g}", "candidates": int(inside.sum()),
                     "probability": float(p[inside].mean()), "right": float(y[inside].mean())}
                )  # fmt: skip
    note = f"""The best {options.verified} candidates of each query; each collection left out. Recall: of right ones
    (up to two numbers away), and of those with the query's own number. Queries answered: of those with a right
    candidate, the share in which one is called same"""
    return Record(list(rows[0]), rows, " ".join(note.split()))


def _said(judge: Judge, row: Sequence[float]) -> tuple[bool, bool, bool]:
    """Whether a candidate is called the same, has the query's own number, and is right."""
    same = judge.evaluate("verified", row[MEASURED["verified"]]) >= SAME
    return same, bool(row[-4]), bool(row[-3])


def first_right(queries: list[Any], judge: Judge) -> float:
    """The share of queries whose most probable candidate is right."""
    best = [max(rows, key=lambda row: judge.evaluate("verified", row[MEASURED["verified"]])) for rows, _ in queries]
    return float(np.mean([bool(row[-3]) for row in best]))


def sure_rows(queries: list[Any]) -> tuple[Wide, NDArray[np.bool_], NDArray[np.bool_]]:
    """x, whether right, and whether features are few, of candidates that are certainly right or wrong."""
    rows = np.array([row for rows, _ in queries for row in rows], np.float64)
    right, wrong, few = (rows[:, k].astype(bool) for k in (-3, -2, -1))
    sure = right | wrong
    return rows[sure][:, : MEASURED["verified"].stop], right[sure], few[sure]


def fit_shipped(options: Options) -> tuple[Projection, Judge, dict[str, int]]:
    """What ships: the projection of all photos, and the verdict of all candidates (each found by one that left out)."""
    data, cells = data_folder(options.data), Path(options.cells) if options.cells else None
    every = [collected(data / "places", name, cells) for name in COLLECTIONS]
    birds = distractors(data, options.distractors, cells)
    p = fit_projection([photos for c in every for photos in (c.references, c.queries)], birds)
    columns = [sure_rows(rows)[:2] for rows in harvest(options).values()]
    counts = {"right": int(sum(y.sum() for _, y in columns)), "wrong": int(sum((~y).sum() for _, y in columns))}
    return p, fit_judge(columns), counts
