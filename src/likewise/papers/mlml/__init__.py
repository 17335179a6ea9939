"""MLML: Multi-Level Metric Learning via Smoothed Wasserstein Distance.

Its tables: the paper's four applications under their protocols, and all methods side by side.

kinship, re-identification, traffic, image-sets and classification measure some methods on data at `data`; `methods`
and `held-out` are the two comparisons of docs/sets.md, on data below $LIKEWISE_DATA.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from likewise.errors import FileError, InputError
from likewise.papers import Record, Table, data_folder, kept, mean_error
from likewise.papers.mlml import layouts, protocols, rivals
from likewise.papers.mlml.protocols import Figures
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
    "SVM": rivals.linear_svm,
}
"""Methods on vectors: the means of sets, or their points side by side."""
ON_SETS: dict[str, Callable[[], Any]] = {
    "EMD": partial(rivals.Unlearned, "emd"),
    "Sinkhorn, unlearned": partial(rivals.Unlearned, "sinkhorn"),
    "global": partial(WassersteinLMNN, multilevel=False, rule="auto"),
    "multi-level": partial(WassersteinLMNN, rule="auto"),
    "as printed": rivals.Printed,
}
USUAL = "Euclid; Mahalanobis; KISSME; LDML; EMD; Sinkhorn, unlearned; global; multi-level"


@dataclass(frozen=True)
class Options:
    """What a table of MLML is made of."""

    data: str = option("", "folder of the data set; default: $LIKEWISE_DATA")
    methods: str = option(USUAL, "methods, semicolons between; also PCCA, LFDA, MFA, LMNN, SVM, as printed …")
    resamples: int = option(10, "drawn splits, where none are official", low=1)
    train_objects: int = option(5, "training sets a class of a drawn split", low=1)
    pca: int = option(100, "principal axes of the training part; 0: none", low=0)
    k: int = option(8, "points of a set of images: as many k-means centres", low=1)
    seed: int = option(0, "seed of splits, pairs and centres", low=0)
    cells: str = option("", "folder where finished figures are kept, so that a stopped run resumes")

    @property
    def folder(self) -> Path:
        """Where the data is."""
        return data_folder(self.data)


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
        if name not in METRICS:
            raise InputError(f"methods: expected some of {'; '.join((*METRICS, *ON_SETS))}, got {name!r}")
        return rivals.OfVectors(METRICS[name](), self.vectors)


def measure(o: Options, columns: Sequence[Column], note: str = "") -> Record:
    """A row a method: mean and standard error of each figure of each column, and seconds."""
    names = [word.strip() for word in o.methods.split(";") if word.strip()]
    rows: list[dict[str, Any]] = []
    with progress(len(names) * len(columns), "methods") as advance, one_blas_thread():
        for name in names:
            row: dict[str, Any] = {"method": name}
            for column in columns:
                row |= _cell(o, column, name)
                advance()
            if len(columns) > 1 and all(c.name in row for c in columns):
                row["mean"] = round(sum(row[c.name] for c in columns) / len(columns), 4)
            rows.append(row)
    shown = [key for key in dict.fromkeys(k for row in rows for k in row) if not key.endswith("seconds")]
    return Record(shown, rows, note)


def _cell(o: Options, column: Column, name: str) -> dict[str, Any]:
    """The figures of one method in one column, from the folder of cells if they were measured before."""
    key = json.dumps([column.name, name, o.resamples, o.train_objects, o.pca, o.k, o.seed, str(o.folder)])
    file = Path(o.cells) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json" if o.cells else None
    return kept(file, partial(_measured, column, name))


def _measured(column: Column, name: str) -> dict[str, Any]:
    """Mean, standard error where there are several folds, and seconds. A named column is one figure: the last."""
    began, row = time.perf_counter(), dict[str, Any]()
    figures = column.measure(column.method(name))
    for title, values in ({column.name: list(figures.values())[-1]} if column.name else figures).items():
        mean, error = mean_error(values)
        row[title] = round(mean, 4)
        if error is not None:
            row[f"{title} ±"] = round(error, 4)
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


def reidentification(o: Options) -> Column:
    """CMC and PUR from camera A to camera B of PRID 2011 or iLIDS-VID; an image is described by the default net."""
    official = (o.folder / "i-LIDS-VID").is_dir()
    dataset = layouts.ilids_vid(o.folder) if official else layouts.prid2011(o.folder)
    sides = tuple([describe(list(t), None, o.k, seed=o.seed) for t in side] for side in (dataset.a, dataset.b))

    def one(method: Any) -> Figures:
        if isinstance(method, WassersteinLMNN):
            method = replace(method, rule="mean")  # people of the test part are levels that were not seen
        return protocols.reid(dataset, method, sides, splits=o.resamples, pca=o.pca or None, seed=o.seed)

    return Column("", one)


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


def vowels() -> Column:
    """JapaneseVowels from the aeon wheel: 270 to train, 370 to test, frames as points."""
    sets, split = layouts.shipped_series("JapaneseVowels")
    return Column("JapaneseVowels", lambda method: protocols.classification(sets, [split], method))


def all_methods(o: Options) -> Record:
    """eth80 with 50 axes, JapaneseVowels as it is, KinFaceW-II with 100 axes."""
    eth80 = image_sets(o.folder / "eth80", replace(o, pca=50), "eth80")
    faces = kinship(o.folder / "kinfacew2", replace(o, pca=100), "kinfacew2")
    note = f"eth80: mean ± s.e. over {o.resamples} resamples; JapaneseVowels: the official split; "
    return measure(o, [eth80, vowels(), faces], note + "kinfacew2: 1 − EER, mean ± s.e. over the official five folds")


def held_out(o: Options) -> Record:
    """eth80 by object number: trained on the odd and tested on the even; three to two among the even, resampled."""
    sets = views(o.folder / "eth80")
    number = np.array([int(Path(s.names[0]).parent.name) if s.names else 0 for s in sets.signatures])
    odd, even = np.flatnonzero(number % 2 == 1), np.flatnonzero(number % 2 == 0)
    labels = np.asarray(sets.labels)
    within = [
        (even[train], even[test]) for train, test in protocols.object_splits(labels[even], 3, o.resamples, o.seed)
    ]
    parts = {"odd → even": [(odd, even)], "even, 3 → 2": within}
    columns = [Column(name, partial(protocols.classification, sets, splits, pca=50)) for name, splits in parts.items()]
    note = f"odd → even: one split; even, 3 → 2: mean ± s.e. over {o.resamples} resamples"
    return measure(o, columns, note)


TABLES = (
    Table("kinship", "kinship verification, 1 − EER (KinFaceW)", Options, lambda o: measure(o, [kinship(o.folder, o)])),
    Table(
        "re-identification", "CMC and PUR (PRID 2011, iLIDS-VID)", Options, lambda o: measure(o, [reidentification(o)])
    ),
    Table("traffic", "accuracy on UCSD traffic videos", Options, lambda o: measure(o, [traffic(o)])),
    Table("image-sets", "accuracy on class/object/images", Options, lambda o: measure(o, [image_sets(o.folder, o)])),
    Table("classification", "accuracy on time series (.ts)", Options, lambda o: measure(o, [series(o)])),
    Table("methods", "all methods on eth80, JapaneseVowels and kinfacew2", Options, all_methods),
    Table("held-out", "eth80 on the objects that no default was chosen on", Options, held_out),
)
"""What `likewise papers mlml` makes."""
