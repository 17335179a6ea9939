"""MLML: Multi-Level Metric Learning via Smoothed Wasserstein Distance.

Its tables: the paper's four applications under their protocols, and all methods side by side.

kinship, re-identification, traffic, image-sets and classification measure some methods on data at `data`; `suite` is
the comparison of docs/sets.md, on data below $LIKEWISE_DATA. Methods on vectors see the means
of the same sets that the others see, or their points side by side.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from likewise import plot
from likewise.errors import FileError, InputError
from likewise.papers import Record, Table, data_folder, kept, mean_error, slug
from likewise.papers.mlml import layouts, protocols, rivals, suite
from likewise.papers.mlml.lomo import LOMO
from likewise.papers.mlml.protocols import Figures, Scores
from likewise.plot.style import axes
from likewise.sets.data import SetCollection, block_lbp, describe, read_sets
from likewise.sets.lmnn import WassersteinLMNN
from likewise.sets.transport.solvers import one_blas_thread
from likewise.store.run import progress
from likewise.train.options import option
from likewise.types import Signature

METRICS: dict[str, Callable[[], Any]] = {
    "Euclid": rivals.Euclid,
    "Mahalanobis": rivals.Mahalanobis,
    "KISSME": rivals.KISSME,
    "LDML": rivals.LDML,
    "PCCA": rivals.PCCA,
    "LFDA": rivals.LFDA,
    "MFA": rivals.MFA,
    "LMNN": rivals.LMNN,
    "LMNN capped": partial(rivals.LMNN, regulariser="capped"),
    "LMNN Fantope": partial(rivals.LMNN, regulariser="fantope"),
    "SVM": lambda: rivals.Classifier(make_pipeline(StandardScaler(), LinearSVC(random_state=0, max_iter=20_000))),
    "kNN": lambda: rivals.Classifier(KNeighborsClassifier(5, weights="distance")),
}
"""Methods on vectors: the means of sets, or their points side by side."""
ON_SETS: dict[str, Callable[[], Any]] = {
    "EMD": partial(rivals.Unlearned, "emd"),
    "Sinkhorn, unlearned": partial(rivals.Unlearned, "sinkhorn"),
    "global": partial(WassersteinLMNN, multilevel=False),
    "multi-level": WassersteinLMNN,
    "as printed": WassersteinLMNN.paper,
    "as printed, global": partial(WassersteinLMNN.paper, multilevel=False),
}
EVERY = (*METRICS, *ON_SETS)
GAMMAS, RHOS = (0.05, 0.2, 1.0), (np.inf, 0.3, 0.1)
"""γ in shares of the median ground cost, and ρ, of the settings that are compared; at ∞ nothing is learned."""
SUITE = "Euclid; KISSME; LDML; LMNN; Sinkhorn, unlearned; as printed, global; as printed; global; multi-level"
USUAL = "Euclid; Mahalanobis; KISSME; LDML; EMD; Sinkhorn, unlearned; global; multi-level"


def chosen(methods: str) -> list[str]:
    """The methods that are named, as they are written here."""
    known = {name.lower(): name for name in EVERY}
    words = "; ".join(EVERY) if methods == "all" else methods.strip("; ")
    names = [known.get(word.strip().lower(), word.strip()) for word in words.split(";")]
    for name in names:
        if name not in EVERY:
            raise InputError(f"methods: expected some of {'; '.join(EVERY)}, or 'all', got {name!r}")
    return names


@dataclass(frozen=True)
class Options:
    """What a table of MLML is made of."""

    data: str = option("", "folder of the data set; default: $LIKEWISE_DATA")
    methods: str = option(USUAL, f"methods, semicolons between, of {'; '.join(EVERY)}; or 'all' of them")
    resamples: int = option(10, "drawn splits, where none are official", low=1)
    train_objects: int = option(5, "training sets a class of a drawn split", low=1)
    pca: int = option(100, "principal axes of the training part; 0: none", low=0)
    k: int = option(8, "points of a set of images: as many k-means centres", low=1)
    seed: int = option(0, "seed of splits, pairs and centres", low=0)
    cells: str = option("", "folder where finished figures are kept, so that a stopped run resumes")
    plot: str = option("", "folder for pictures of what was measured: ROC and CMC curves, else accuracies")

    @property
    def folder(self) -> Path:
        """Where the data is."""
        return data_folder(self.data)

    def __post_init__(self) -> None:
        chosen(self.methods)  # before any data is read


@dataclass(frozen=True)
class People(Options):
    """What finding people again is made of, or places."""

    features: Literal["auto", "lomo", "embed", "pixels", "lbp"] = option(
        "auto", "what describes an image; auto: lomo, as in the paper, for people, and embed for places"
    )
    shots: int = option(4, "photos that are a set, in reference/ and query/ of a walk that was taken twice", low=1)


@dataclass(frozen=True)
class Suite(Options):
    """What the suite is made of."""

    methods: str = option(SUITE, "methods, semicolons between; or 'all' of them")
    resamples: int = option(suite.RESAMPLES, "drawn splits, where none are official", low=1)
    only: str = option("", "collections, semicolons between; default: all")


@dataclass(frozen=True)
class Column:
    """A measurement of methods: its name in the table, how a method is measured, and the vectors that metrics see."""

    name: str
    measure: Callable[[Any], Figures]
    vectors: Callable[[Sequence[Signature]], Any] = rivals.mean_vectors

    def method(self, name: str) -> Any:
        """A method by name, ready to be fitted."""
        if name in ON_SETS:
            return ON_SETS[name]()
        return rivals.OfVectors(METRICS[name](), self.vectors)


def measure(o: Options, columns: Sequence[Column], note: str = "") -> Record:
    """A row a method: mean and standard error of each figure of each column, and seconds."""
    names, rows = chosen(o.methods), list[dict[str, Any]]()
    with progress(len(names) * len(columns), "methods") as advance, one_blas_thread():
        for name in names:
            row: dict[str, Any] = {"method": name}
            for column in columns:
                row |= _cell(o, column, name)
                advance()
            if len(columns) > 1 and all(c.name in row for c in columns):
                row["mean"] = round(sum(row[c.name] for c in columns) / len(columns), 4)
            rows.append(row)
    shown = [key for key in dict.fromkeys(k for row in rows for k in row) if not key.endswith(("seconds", "curves"))]
    if o.plot:
        draw(Path(o.plot), rows, shown)
    return Record(shown, rows, note)


def draw(folder: Path, rows: Sequence[dict[str, Any]], shown: Sequence[str]) -> None:
    """A picture of each kind of curve, a line a method with its figure; where there are none, one of each figure."""
    made: dict[str, Any] = {}
    for title in rows[0].get("curves", {}):
        each = {row["method"]: row["curves"][title] for row in rows}
        lines = {f"{method}, {label}": (x, y) for method, (label, x, y) in each.items()}
        names = (
            ("rank", "share found by this rank")
            if title == "CMC"
            else ("different pairs accepted", "same pairs accepted")
        )
        made[title] = plot.curves(lines, title=title, xlabel=names[0], ylabel=names[1])
    for name in [] if made else [name for name in shown if name != "method" and "±" not in name]:
        made[name], ax = axes(5.4, 1.2 + 0.24 * len(rows), title=name)
        dots = [(row[name], row["method"], row.get(f"{name} ±", 0.0)) for row in rows if name in row]
        means, methods, errors = zip(*dots, strict=True)
        ax.errorbar(means, methods, xerr=errors, fmt="o", color=plot.PALETTE[0], ms=4, elinewidth=1.2)
        ax.invert_yaxis()
        ax.grid(True, color=plot.FAINT, lw=0.5)
    for title, figure in made.items():
        plot.save(figure, folder / f"{slug(title)}.png")


def _cell(o: Options, column: Column, name: str, method: Any = None) -> dict[str, Any]:
    """The figures of one method (by name) in one column, from the folder of cells if they were measured before."""
    given = {key: value for key, value in vars(o).items() if key not in ("methods", "cells", "plot", "only")}
    key = hashlib.sha256(json.dumps([given, str(o.folder)]).encode()).hexdigest()[:8]
    file = Path(o.cells) / f"{slug(f'{column.name} {name}')}-{key}.json" if o.cells else None
    return kept(file, lambda: _measured(column, column.method(name) if method is None else method))


def _measured(column: Column, method: Any) -> dict[str, Any]:
    """Mean, standard error where there are several folds, and seconds. A named column is one figure: the last."""
    began, row = time.perf_counter(), dict[str, Any]()
    figures = column.measure(method)
    for title, values in ({column.name: list(figures.values())[-1]} if column.name else figures).items():
        mean, error = mean_error(values)
        row[title] = round(mean, 4)
        if error is not None:
            row[f"{title} ±"] = round(error, 4)
    if isinstance(figures, Scores) and not column.name:
        row["curves"] = {
            title: [label, x.round(4).tolist(), y.round(4).tolist()] for title, (label, x, y) in figures.curves.items()
        }
    return row | {f"{column.name} seconds".strip(): round(time.perf_counter() - began, 1)}


# ── the data ──────────────────────────────────────────────────────────────────────────────────────────────────────


def views(path: Path) -> SetCollection:
    """class/object/images (ETH-80) as sets of grey 20 × 20 pixels, a point an image."""
    sets = read_sets(path, "pixels", None)
    if sets.labels is None:
        raise InputError(f"data: the sets in {path} have no classes; expected class/object/images")
    return sets


def image_sets(path: Path, o: Options, name: str = "accuracy") -> Column:
    """Accuracy over drawn splits by object: there is no official one."""
    sets = views(path)
    splits = protocols.object_splits(np.asarray(sets.labels), o.train_objects, o.resamples, o.seed)
    return Column(name, lambda method: protocols.classification(sets, splits, method, pca=o.pca or None))


def kinship(path: Path, o: Options, name: str = "") -> Column:
    """1 − EER on the official folds of KinFaceW; a face is a point of LBP and a point of HOG, as in the paper."""
    dataset = layouts.kinfacew(path)
    lbp = np.stack([block_lbp(face, root=True).ravel() for face in dataset.paths])
    hog = np.stack([layouts.block_hog(face).ravel() for face in dataset.paths])

    def one(method: Any) -> Figures:
        return protocols.kinship(dataset, method, (lbp, hog), pca=o.pca or None, seed=o.seed)

    return Column(name, one, rivals.flat_vectors)


def reidentification(o: People) -> Column:
    """CMC and PUR from camera A to camera B of PRID 2011 or iLIDS-VID, or from a walk to the same taken again."""
    walk = (o.folder / "reference").is_dir()
    if walk:
        dataset = layouts.two_seasons(o.folder, o.shots)
    else:
        dataset = (layouts.ilids_vid if (o.folder / "i-LIDS-VID").is_dir() else layouts.prid2011)(o.folder)
    name = o.features if o.features != "auto" else "embed" if walk else "lomo"
    net = LOMO if name == "lomo" else name
    sides = tuple([describe(list(t), net, o.k, seed=o.seed) for t in side] for side in (dataset.a, dataset.b))
    # a metric of all of LOMO's 26,960 coordinates would take 6 GB: without --pca, all the axes of the training images
    axes = o.pca or (sides[0][0].dim if name == "lomo" else None)
    return Column("", lambda m: protocols.reid(dataset, m, sides, splits=o.resamples, pca=axes, seed=o.seed))


def traffic(o: Options) -> Column:
    """Accuracy on the official splits of the UCSD traffic videos."""
    dataset = layouts.ucsd_traffic(o.folder)
    sets = dataset.sets(o.k, seed=o.seed)
    return Column("accuracy", lambda m: protocols.classification(sets, dataset.splits, m, pca=o.pca or None))


def series(o: Options) -> Column:
    """Accuracy on the official split of two .ts files, NAME_TRAIN.ts and NAME_TEST.ts."""
    files = sorted(o.folder.glob("*_TRAIN.ts"))
    if not files:
        raise FileError(f"{o.folder}: expected NAME_TRAIN.ts and NAME_TEST.ts")
    sets, split = layouts.time_series(files[0], files[0].with_name(files[0].name.replace("_TRAIN", "_TEST")))
    return Column("accuracy", lambda method: protocols.classification(sets, [split], method, pca=o.pca or None))


def of_suite(o: Suite) -> list[Column]:
    """The collections of the suite that are asked for."""
    made = suite.collections(o.folder, Path(o.cells) if o.cells else None, o.seed, o.resamples)
    wanted = [name for name in made if not o.only or name in {word.strip() for word in o.only.split(";")}]
    if not wanted:
        raise InputError(f"only: expected some of {'; '.join(made)}, got {o.only!r}")
    return [Column(c.name, c.measure, c.vectors) for c in (made[name]() for name in wanted)]


def whole_suite(o: Suite) -> Record:
    """All methods on collections of different kinds, a row a collection; see `suite`."""
    columns = of_suite(o)
    made = measure(o, columns).rows
    rows: list[dict[str, Any]] = []
    for name in (c.name for c in columns):
        cells = {row["method"]: f"{row[name]:.3f} ± {row[f'{name} ±']:.3f}" for row in made}
        rows.append({"collection": name} | cells)
    means = {row["method"]: round(float(np.mean([row[c.name] for c in columns])), 4) for row in made}
    note = f"mean ± s.e. over {o.resamples} drawn splits, kinfacew2 over the official five folds (1 − EER)"
    return Record([*rows[0]], [*rows, {"collection": "mean"} | means], note)


def settings(o: Suite) -> Record:
    """For each collection, which γ and ρ of the global model the others would choose, and what it is worth here."""
    columns, figures = of_suite(o), dict[str, dict[str, float]]()
    with progress(len(GAMMAS) * len(RHOS) * len(columns), "settings") as advance, one_blas_thread():
        for gamma, rho in product(GAMMAS, RHOS):
            learns = {"max_iter": 0} if np.isinf(rho) else {"rho0": rho}
            model = WassersteinLMNN(multilevel=False, start="identity", gamma=gamma, **learns)
            name = f"γ {gamma:g}, " + (f"ρ {rho:g}" if learns.get("rho0") else "unlearned")
            figures[name] = {}
            for column in columns:
                figures[name][column.name] = _cell(o, column, name, model)[column.name]
                advance()
    rows = []
    for column in columns:
        others = [c.name for c in columns if c is not column]
        chosen = max(figures, key=lambda name: sum(figures[name][other] for other in others))
        best = max(figures, key=lambda name: figures[name][column.name])
        row = {"collection": column.name, "the others choose": chosen, "accuracy": figures[chosen][column.name]}
        rows.append(row | {"best": best, "its accuracy": figures[best][column.name]} | _of(figures, column.name))
    means = {name: float(np.mean(list(of.values()))) for name, of in figures.items()}
    rows.append({"collection": "mean", "accuracy": float(np.mean([row["accuracy"] for row in rows]))} | means)
    rows = [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    note = f"global model from the identity; mean over {o.resamples} drawn splits, or the official five folds"
    return Record([*[*rows[0]][:5], "γ 0.2, unlearned", "γ 0.2, ρ 0.3"], rows, note)


def _of(figures: dict[str, dict[str, float]], collection: str) -> dict[str, float]:
    return {name: of[collection] for name, of in figures.items()}


TABLES = (
    Table("kinship", "kinship verification, 1 − EER (KinFaceW)", Options, lambda o: measure(o, [kinship(o.folder, o)])),
    Table(
        "re-identification", "CMC and PUR (PRID 2011, iLIDS-VID)", People, lambda o: measure(o, [reidentification(o)])
    ),
    Table("traffic", "accuracy on UCSD traffic videos", Options, lambda o: measure(o, [traffic(o)])),
    Table("image-sets", "accuracy on class/object/images", Options, lambda o: measure(o, [image_sets(o.folder, o)])),
    Table("classification", "accuracy on time series (.ts)", Options, lambda o: measure(o, [series(o)])),
    Table("suite", "all methods on collections of different kinds", Suite, whole_suite),
    Table("settings", "γ and ρ that the other collections of the suite choose", Suite, settings),
)
"""What `likewise papers mlml` makes."""
