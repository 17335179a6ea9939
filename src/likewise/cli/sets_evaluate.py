"""`likewise sets evaluate`: learned against unlearned distances under the protocols of the level."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.sets import Reading, model_at, reader_of
from likewise.cli.sources import Reader
from likewise.cli.terminal import check_writable, remark, write_json
from likewise.errors import FileError, InputError
from likewise.sets.objective import LMNNOptions
from likewise.train.options import add_options, list_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.papers.mlml.protocols import Result
    from likewise.sets.data import SetCollection
    from likewise.sets.layouts import ReId, Sets
    from likewise.sets.lmnn import WassersteinLMNN
    from likewise.types import Signature

PROTOCOLS = ("auto", "image-sets", "classify", "kinship", "reid", "traffic")
METHODS = ("euclid", "sinkhorn", "emd", "kissme", "global", "multilevel")
USUAL = "euclid,sinkhorn,global,multilevel"
LEARNING = tuple(
    k.name for k in list_options(LMNNOptions) if k.name not in ("multilevel", "seed", "verbose", "n_components")
)
FACE_GRID = 4
"""Kinship: a face is a set of 4 × 4 parts, one point each (the whole face with --features pixels)."""


@dataclass
class Job:
    """What was asked, and what came of it."""

    path: Path
    protocol: str
    methods: dict[str, Any]
    reader: Reader
    resamples: int
    train_objects: int | None
    pca: int | None
    seed: int
    results: dict[str, Result] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    confusions: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)

    def measure(self, one: Callable[[Any], Result]) -> None:
        """Run the protocol with each method."""
        from likewise.sets.transport.solvers import one_blas_thread
        from likewise.store.run import progress

        with progress(len(self.methods), self.protocol) as advance, one_blas_thread():
            for name, method in self.methods.items():
                began = time.perf_counter()
                self.results[name] = one(method)
                self.seconds[name] = round(time.perf_counter() - began, 3)
                advance()


@click.command()
@click.argument("path", type=click.Path())
@click.option("--protocol", default="auto", show_default=True, type=click.Choice(PROTOCOLS), help="auto: by the layout")
@click.option("--model", type=click.Path(), help="classify the sets at PATH with this file of `likewise sets fit`")
@click.option(
    "--methods", default=USUAL, show_default=True, help=f"which to compare, with commas between: {', '.join(METHODS)}"
)
@click.option("--resamples", default=10, show_default=True, type=click.IntRange(1), help="draws of the training sets")
@click.option(
    "--train-objects", type=click.IntRange(1), help="image-sets: training sets a class  [default: half of them]"
)
@click.option("--pca", default=100, show_default=True, type=click.IntRange(0), help="principal axes; 0: none")
@click.option(
    "--out", default=".", show_default=True, type=click.Path(), help="folder for evaluate.json and evaluate.png"
)
@add_options(Reading)
@add_options(LMNNOptions, *LEARNING)
@click.option("--json", "as_json", is_flag=True, help="print what stands in evaluate.json")
def evaluate(
    path: str,
    protocol: str,
    model: str | None,
    methods: str,
    resamples: int,
    train_objects: int | None,
    pca: int,
    out: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure distances on the sets at PATH: train on a part, score the rest.

    \b
    image-sets  class/object/pictures, class/videos or a labelled .npz: accuracy over resamples
    classify    PATH/train and PATH/test, two .ts files, or any labelled sets with --model: accuracy
    kinship     KinFaceW (images/, meta_data/): 1 - EER on the official folds, ROC
    reid        PRID 2011, iLIDS-VID: CMC and PUR over half splits of the people
    traffic     UCSD traffic videos: accuracy on the official splits
    """
    place, folder = Path(path), Path(out)
    if not place.exists():
        raise FileError(f"{place}: no such file or folder")
    fitted = model_at(model)
    named = _protocol(place, protocol, fitted)
    chosen = _methods(methods, given)
    check_writable(folder)
    reader = reader_of(given, fitted)
    job = Job(place, named, chosen, reader, resamples, train_objects, pca or None, given["seed"])
    if fitted is not None:
        _with_model(job, fitted, given)
    else:
        RUNS[named](job)
    reader.tell()
    record = _record(job, model, given)
    pictures = _draw(job, folder)
    write_json(folder / "evaluate.json", record)
    _print(job, record, as_json)
    remark(f"see {', '.join(str(p) for p in pictures)}")


def _protocol(path: Path, asked: str, fitted: WassersteinLMNN | None) -> str:
    """The protocol that was asked for, or the one that the layout of the folder calls for."""
    if fitted is not None:
        if asked not in ("auto", "classify"):
            raise InputError(f"model: {asked} trains its own models on official parts; a model is scored by classify")
        return "classify"
    if asked != "auto":
        return asked
    marks = {
        "kinship": ("meta_data",),
        "reid": ("multi_shot", "prid_2011", "PRID2011", "i-LIDS-VID"),
        "traffic": ("ImageMaster", "ImageMaster.mat", "trafficdb"),
        "classify": ("train",),
    }
    for name, places in marks.items():
        if any((path / place).exists() for place in places):
            return name
    return "classify" if path.is_dir() and list(path.glob("*_TRAIN.ts")) else "image-sets"


def _methods(words: str, given: dict[str, Any]) -> dict[str, Any]:
    """The methods by name, each ready to be fitted."""
    from likewise.papers.mlml.rivals import KISSME, OfVectors, Unlearned
    from likewise.sets import WassersteinLMNN

    names = list(dict.fromkeys(w.strip() for w in words.split(",") if w.strip()))
    for name in names:
        if name not in METHODS:
            raise InputError(f"methods: expected some of {', '.join(METHODS)}, got {name!r}")
    if not names:
        raise InputError(f"methods: expected some of {', '.join(METHODS)}, got none")
    learning = {name: given[name] for name in LEARNING} | {"seed": given["seed"]}
    plain = {"value": given["value"], "tol": given["tol"]}
    makers: dict[str, Callable[[], Any]] = {
        "euclid": lambda: Unlearned("euclid"),
        "sinkhorn": lambda: Unlearned("sinkhorn", **plain),
        "emd": lambda: Unlearned("emd"),
        "kissme": lambda: OfVectors(KISSME(seed=given["seed"])),
        "global": lambda: WassersteinLMNN(multilevel=False, **learning),
        "multilevel": lambda: WassersteinLMNN(multilevel=True, **learning),
    }
    return {name: makers[name]() for name in names}


# ── protocols ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Watched:
    """A method whose predictions are written down: protocols copy methods, the notes are shared by the copies."""

    def __init__(self, method: Any, notes: list[Any]) -> None:
        self.method, self.notes = method, notes

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched:
        return Watched(copy.deepcopy(self.method, memo), self.notes)

    def fit(self, X: Any, y: Any, levels: Any = None) -> Watched:
        self.method.fit(X, y, levels=levels)
        return self

    def predict(self, X: Any) -> Any:
        found = self.method.predict(X)
        self.notes.append(found)
        return found


def _classified(job: Job, labels: NDArray[Any], tests: Sequence[Any], one: Callable[[Any], Result]) -> None:
    """Run a protocol that classifies, and count who was taken for whom over all of its test parts."""
    import numpy as np

    notes: dict[str, list[Any]] = {name: [] for name in job.methods}
    job.methods = {name: Watched(method, notes[name]) for name, method in job.methods.items()}
    job.measure(one)
    truth = np.concatenate([labels[test] for test in tests])
    job.classes = [str(c) for c in np.unique(labels)]
    for name, said in notes.items():
        job.confusions[name] = confusion(truth, np.concatenate(said), np.unique(labels))


def confusion(truth: NDArray[Any], said: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.float64]:
    """Shares (c, c): of the sets of class i, how many were taken for class j; rows sum to 1 (0 for an unseen class)."""
    import numpy as np

    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (np.searchsorted(classes, truth), np.searchsorted(classes, said)), 1)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _image_sets(job: Job) -> None:
    import numpy as np

    from likewise.papers.mlml import protocols

    data = _labelled(job.reader.many(job.path), job.path)
    labels = np.asarray(data.labels)
    count = job.train_objects or max(1, int(np.unique(labels, return_counts=True)[1].min()) // 2)
    splits = [protocols.object_split(labels, count, np.random.default_rng([job.seed, r])) for r in range(job.resamples)]

    def one(method: Any) -> Result:
        return protocols.image_sets(
            data, method, train_objects=count, resamples=job.resamples, seed=job.seed, pca=job.pca
        )

    job.train_objects = count
    _classified(job, labels, [test for _, test in splits], one)


def _classify(job: Job) -> None:
    import numpy as np

    from likewise.papers.mlml import protocols

    train, test = _train_test(job)
    labels = np.concatenate([np.asarray(train.labels), np.asarray(test.labels)])
    rows = np.arange(len(train), len(labels))
    _classified(job, labels, [rows], lambda method: protocols.classification(train, test, method, pca=job.pca))


def _train_test(job: Job) -> tuple[Sets, Sets]:
    from likewise.sets import layouts

    series = sorted(job.path.glob("*_TRAIN.ts")) if job.path.is_dir() else []
    if series:
        both = layouts.time_series(series[0], series[0].with_name(series[0].name.replace("_TRAIN", "_TEST")))
        return both.train, both.test
    parts = [job.path / name for name in ("train", "test")]
    for part in parts:
        if not part.is_dir():
            raise FileError(
                f"{part}: no such folder; classify needs train/ and test/, or --model with any labelled sets"
            )
    one, two = (_labelled(job.reader.many(part), part) for part in parts)
    return one, two


def _labelled(found: SetCollection, path: Path) -> Sets:
    from likewise.sets.layouts import Sets

    if found.labels is None:
        raise InputError(f"path: the sets in {path} have no classes; expected class/object/pictures or a labelled .npz")
    return Sets(tuple(found.signatures), found.labels)


def _kinship(job: Job) -> None:
    from likewise.papers.mlml import protocols
    from likewise.sets import layouts
    from likewise.store.run import progress

    dataset = layouts.kinfacew(job.path)
    faces: list[Signature] = []
    with progress(len(dataset.paths), "faces") as advance:
        for path in dataset.paths:
            faces.append(_face(path, job.reader.features))
            advance()
    job.measure(lambda method: protocols.kinship(dataset, method, faces, pca=job.pca, seed=job.seed))


def _face(path: Path, features: str) -> Signature:
    """A face as a set of its parts, a point each, all in one space."""
    from likewise.sets import features as local
    from likewise.types import Signature

    if features == "lbp":
        return Signature(local.block_lbp(path, (FACE_GRID, FACE_GRID), root=True))
    if features == "pixels":
        return Signature(local.grey_pixels(path))
    from likewise.images import default

    return Signature(default().local(path, FACE_GRID))


def _reid(job: Job) -> None:
    from likewise.papers.mlml import protocols
    from likewise.sets import layouts

    inner = job.path / "i-LIDS-VID"
    dataset: ReId = layouts.ilids_vid(job.path) if inner.is_dir() else layouts.prid2011(job.path)
    sides = dataset.a, dataset.b
    a, b = ([_tracklet(job.reader, t) for t in side] for side in sides)
    splits = min(job.resamples, len(dataset.splits)) if dataset.splits else job.resamples
    job.measure(lambda method: protocols.reid(dataset, method, (a, b), splits=splits, pca=job.pca, seed=job.seed))


def _tracklet(reader: Reader, pictures: Sequence[Path]) -> Signature:
    found = reader.pictures(pictures)
    if found is None:
        raise FileError(f"{pictures[0].parent}: no picture of this person can be read")
    return found


def _traffic(job: Job) -> None:
    import numpy as np

    from likewise.papers.mlml import protocols
    from likewise.sets import layouts

    dataset = layouts.ucsd_traffic(job.path)
    sets = dataset.signatures(job.reader.k, every=job.reader.every, seed=job.seed)
    tests = [test for _, test in dataset.splits]
    _classified(
        job,
        np.asarray(dataset.labels),
        tests,
        lambda method: protocols.traffic(dataset, method, sets, pca=job.pca),
    )


RUNS: dict[str, Callable[[Job], None]] = {
    "image-sets": _image_sets,
    "classify": _classify,
    "kinship": _kinship,
    "reid": _reid,
    "traffic": _traffic,
}


def _with_model(job: Job, fitted: WassersteinLMNN, given: dict[str, Any]) -> None:
    """Classify the sets at the path with a fitted model, and by unlearned distances to the same training sets."""
    import numpy as np

    from likewise.papers.mlml.protocols import Result
    from likewise.papers.mlml.rivals import Unlearned
    from likewise.sets.metrics import accuracy

    data = _labelled(job.reader.many(job.path), job.path)
    truth = np.asarray(data.labels).astype(fitted.classes_.dtype)
    sets = fitted.project(data.signatures)
    gallery, labels = _training_sets(fitted)
    plain = {n: Unlearned(n, value=given["value"]).fit(gallery, labels) for n in ("euclid", "sinkhorn")}
    job.methods = {**plain, "the model": fitted}
    classes = np.unique(np.concatenate([truth, labels]))
    job.classes = [str(c) for c in classes]

    def one(method: Any) -> Result:
        said = method.predict(data.signatures if method is fitted else sets)
        name = next(n for n, m in job.methods.items() if m is method)
        job.confusions[name] = confusion(truth, said, classes)
        return Result("classification, accuracy", "test part", {"accuracy": (accuracy(truth, said),)})

    job.measure(one)


def _training_sets(fitted: WassersteinLMNN) -> tuple[list[Signature], NDArray[Any]]:
    """The sets that a model was trained on, on its axes, and their labels."""
    from likewise.types import Signature

    arrays, _ = fitted.state()
    points, weights, ends = arrays["points"], arrays["weights"], arrays["offsets"]
    spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    return [Signature(points[s], weights[s]) for s in spans], fitted.classes_[arrays["codes"]]


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────


def _best(job: Job) -> str:
    """The method with the best mean of the figure that decides: the mean, the accuracy, rank 1."""
    figure = _deciding(job)
    return max(job.results, key=lambda name: job.results[name].mean(figure))


def _deciding(job: Job) -> str:
    figures = next(iter(job.results.values())).figures
    return "mean" if "mean" in figures else next(iter(figures))


def _record(job: Job, model: str | None, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": str(job.path),
        "protocol": job.protocol,
        "model": model,
        "features": None if job.protocol == "traffic" else job.reader.features,
        "pca": job.pca,
        "resamples": job.resamples,
        "train_objects": job.train_objects,
        "best": _best(job),
        "methods": {n: {**r.to_dict(), "seconds": job.seconds[n]} for n, r in job.results.items()},
        "cmc": {n: r.cmc.tolist() for n, r in job.results.items() if r.cmc is not None},
        "confusion": {"classes": job.classes, **{n: c.tolist() for n, c in job.confusions.items()}},
        "options": {name: given[name] for name in (*LEARNING, "seed")},
        "left_out": job.reader.left_out(),
    }


def _draw(job: Job, folder: Path) -> list[Path]:
    """The curves or bars of all methods, and who the best one takes for whom."""
    from likewise import plot

    results = job.results
    first = next(iter(results.values()))
    if first.rocs:
        figure = plot.curves(
            {n: _mean_roc(r) for n, r in results.items()}, kind="roc", title="ROC, mean over relations"
        )
    elif first.cmc is not None:
        lines = {n: (list(range(1, len(r.cmc) + 1)), r.cmc) for n, r in results.items() if r.cmc is not None}
        figure = plot.curves(lines, kind="cmc", title=f"CMC, mean over {len(first.figures['PUR'])} {first.folds}")
    else:
        figure = _bars(job)
    drawn = [plot.save(figure, folder / "evaluate.png")]
    if job.confusions:
        best = _best(job)
        title, unit = f"{best}: true class (rows), taken for (columns)", "share of the true class"
        shown = plot.heatmap(job.confusions[best], job.classes, title=title, unit=unit)
        drawn.append(plot.save(shown, folder / "confusion.png"))
    return drawn


def _bars(job: Job) -> Any:
    import math

    from likewise import plot

    figure = _deciding(job)
    values = {n: r.mean(figure) for n, r in job.results.items()}
    errors = {n: r.se(figure) for n, r in job.results.items() if not math.isnan(r.se(figure))}
    first = next(iter(job.results.values()))
    count = len(first.figures[figure])
    title = first.protocol if count == 1 else f"{first.protocol}: mean ± s.e. over {count} {first.folds}"
    return plot.bars(values, errors=errors, title=title, highlight=_best(job), form="{:.3f}".format, unit=figure)


def _mean_roc(result: Result) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean over relations of the true accept rate at each false accept rate."""
    import numpy as np

    at = np.linspace(0, 1, 201)
    return at, np.mean([np.interp(at, r.fpr, r.tpr) for r in result.rocs.values()], axis=0)


def _print(job: Job, record: dict[str, Any], as_json: bool) -> None:
    """A table on stdout; the best of each column is bold."""
    if as_json:
        import json

        click.echo(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    results = job.results
    first = next(iter(results.values()))
    count = len(next(iter(first.figures.values())))
    title = f"{first.protocol}, {count} {first.folds}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for name in first.figures:
        table.add_column(name, justify="right")
    table.add_column("s", justify="right")
    top = {name: max(r.mean(name) for r in results.values()) for name in first.figures}
    for method, r in results.items():
        cells = [_cell(r, name, top[name]) for name in r.figures]
        table.add_row(method, *cells, f"{job.seconds[method]:.1f}")
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(title)
    console.print(table)


def _cell(r: Result, name: str, top: float) -> str:
    import math

    mean, error = r.mean(name), r.se(name)
    words = f"{mean:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")
    return f"[bold]{words}[/bold]" if mean == top else words
