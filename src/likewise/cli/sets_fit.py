"""`likewise sets fit`: learn a metric from labelled sets, and keep it with all that it needs to take pictures again."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.sets import Reading, reader_of
from likewise.cli.sources import Reader
from likewise.cli.terminal import check_writable, remark, result, write_json
from likewise.errors import InputError, LikewiseError
from likewise.sets.objective import LMNNOptions
from likewise.train.options import add_options, list_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.sets.data import SetCollection
    from likewise.sets.lmnn import WassersteinLMNN
    from likewise.store.run import Run
    from likewise.types import Signature

LEARNING = tuple(k.name for k in list_options(LMNNOptions) if k.name not in ("seed", "verbose", "n_components"))
"""The options of WassersteinLMNN that are flags here; --seed is shared with k-means, progress is always told."""

PARTS = "parts"
"""The folder in a run directory where finished folds and rounds are kept until the end."""

MOST_QUERIES = 1000
"""Leave-one-out accuracy asks at most this many sets (drawn by seed); the gallery is always whole."""


@click.command()
@click.argument("path", type=click.Path())
@click.option("--out", default="model.safetensors", show_default=True, type=click.Path(), help="the file of the metric")
@click.option(
    "--pca", default=100, show_default=True, type=click.IntRange(0), help="learn on so many principal axes; 0: on all"
)
@click.option("--run", "run_folder", type=click.Path(), help="the run directory  [default: OUT without suffix, .run]")
@click.option("--overwrite", is_flag=True, help="replace an earlier model and its run directory")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with what a stopped fit left")
@add_options(Reading)
@add_options(LMNNOptions, *LEARNING)
@click.option("--json", "as_json", is_flag=True, help="print what stands in fit.json")
def fit(
    path: str, out: str, pca: int, run_folder: str | None, overwrite: bool, resume: bool, as_json: bool, **given: Any
) -> None:
    """Learn a metric from the labelled sets at PATH: class/object/pictures, class/videos, or an .npz with labels.

    Writes the metric (--out), fit.json and fit.png beside it, and a run directory with the configuration and history.
    metrics.jsonl there grows with every trial and iteration; finished folds and rounds are kept until the end, so that
    a stopped fit goes on (the round that was cut short is logged again).
    """
    target = Path(out)
    run = _begin(target, run_folder, overwrite, resume, {"path": path, "pca": pca, **given})
    reader = reader_of(given)
    found = reader.many(path)
    reader.tell()
    labels = _labels(found, path)
    model, seconds = _learned(found, labels, pca, given, reader, run)
    record = _record(model, found, labels, seconds, reader, path)
    _keep(model, record, target, run)
    result(_line(record, target), record, as_json)
    remark(f"see {target.parent / 'fit.png'}; the run is in {run.path}")


def _begin(target: Path, run_folder: str | None, overwrite: bool, resume: bool, config: dict[str, Any]) -> Run:
    """The run directory, made before any work; an earlier one that came to its end is refused unless --overwrite.

    One that was stopped is gone on with if its configuration is the same, else begun anew.
    """
    from likewise.store.run import Run

    if target.suffix != ".safetensors":
        raise InputError(f"out: expected a name that ends in .safetensors, got {str(target)!r}")
    check_writable(target.parent)
    folder = Path(run_folder) if run_folder else target.with_suffix(".run")
    finished = [f for f in (target, folder / "result.json") if f.exists()]
    if finished and not overwrite:
        raise InputError(f"out: {finished[0]} is there already; use another --out, or --overwrite to replace it")
    if resume and not finished and (folder / "run.json").exists():
        with contextlib.suppress(LikewiseError):
            return Run.create(folder, config, seed=config["seed"], resume=True)
    for name in ("config.json", "run.json", "metrics.jsonl", "result.json"):
        (folder / name).unlink(missing_ok=True)
    if not resume or finished:
        shutil.rmtree(folder / PARTS, ignore_errors=True)
    return Run.create(folder, config, seed=config["seed"])


def _labels(found: SetCollection, path: str) -> NDArray[Any]:
    if found.labels is None:
        raise InputError(
            f"path: the sets in {path} have no classes; expected class/object/pictures, class/videos, "
            "or an .npz with labels"
        )
    return found.labels


def _learned(
    found: SetCollection, labels: NDArray[Any], pca: int, given: dict[str, Any], reader: Reader, run: Run
) -> tuple[WassersteinLMNN, float]:
    """The fitted pipeline, and how long learning took; each step is logged in the run and told to who watches."""
    from likewise.sets import WassersteinLMNN
    from likewise.sets.learning import fit_identity
    from likewise.store.job import Job

    model = WassersteinLMNN(**{name: given[name] for name in LEARNING}, seed=given["seed"], n_components=pca or None)
    identity = fit_identity(found.signatures, labels, model.get_params())
    began = time.perf_counter()
    with _told(run) as watch, Job.begin(run.path / PARTS, identity, on_change="restart") as job:
        model.fit(found.signatures, labels, watch=watch, remember=job.keep)
    seconds = time.perf_counter() - began
    if job.resumed:
        remark(f"resumed after {', '.join(job.resumed)}")
    if found.described:
        model.source_ = {"features": reader.features, "k": reader.k, "every": reader.every, "seed": reader.seed}
    return model, seconds


@contextlib.contextmanager
def _told(run: Run) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What `fit` calls after every step: a line of metrics.jsonl, and the same in words on a terminal's last line."""
    count = len(run.metrics())
    with contextlib.ExitStack() as stack:
        say: Callable[[str], None] | None = None
        if sys.stderr.isatty():
            from rich.console import Console

            say = stack.enter_context(Console(stderr=True).status("learning: first distances")).update

        def watch(record: dict[str, Any]) -> None:
            nonlocal count
            run.log(count, **{"step_length" if k == "step" else k: v for k, v in record.items()})
            count += 1
            if say is not None:
                say(_words(record))

        yield watch


def _words(record: dict[str, Any]) -> str:
    """One step in words."""
    if record["stage"] == "choice":
        return (
            f"choosing: {record['fold']}, start {record['start']}, ρ = {record['rho']:g}, score {record['score']:.3f}"
        )
    active = f"{record['active']} of {record['triplets']} triplets active"
    return f"learning: round {record['round'] + 1}, J = {record['objective']:.5g}, {active}"


def _record(
    model: WassersteinLMNN, found: SetCollection, labels: NDArray[Any], seconds: float, reader: Reader, path: str
) -> dict[str, Any]:
    learned, unlearned, asked = leave_one_out(model, found.signatures, labels)
    return {
        "path": path,
        "sets": len(found),
        "classes": {str(c): int((labels == c).sum()) for c in model.classes_},
        "features": model.source_.get("features"),
        "dimensions": {"described": int(model.n_features_in_), "learned": len(model.M0_)},
        "gamma": model.gamma_,
        "start": model.start_,
        "rho": list(model.rho_),
        "rule": model.rule_,
        "objective": model.history_[-1]["objective"] if model.history_ else None,
        "objective_at_start": model.history_[0]["objective"] if model.history_ else None,
        "iterations": len(model.history_),
        "leave_one_out": {
            "learned": learned,
            "unlearned": unlearned,
            "queries": asked,
            "of": "the training sets, which the metric has seen; `likewise papers mlml image-sets` holds sets out",
        },
        "seconds": round(seconds, 3),
        "options": {k: v for k, v in dataclasses.asdict(model).items() if k != "verbose"},
        "left_out": reader.left_out(),
    }


def leave_one_out(model: WassersteinLMNN, sets: list[Signature], labels: NDArray[Any]) -> tuple[float, float, int]:
    """1-NN accuracy among the training sets, each set's own column left out: learned, unlearned, and of how many."""
    import numpy as np

    from likewise.papers.mlml.rivals import Unlearned
    from likewise.sets.metrics import accuracy, one_nn

    rows = np.arange(len(sets))
    if len(rows) > MOST_QUERIES:
        rows = np.sort(np.random.default_rng(model.seed).choice(rows, MOST_QUERIES, replace=False))
    projected = model.project(sets)
    queries = [projected[i] for i in rows]
    plain = Unlearned(value=model.value, tol=model.tol).fit(projected, labels.tolist())

    def score(D: NDArray[np.float64]) -> float:
        D = np.array(D)
        D[np.arange(len(rows)), rows] = np.inf
        return accuracy(labels[rows], one_nn(D, labels))

    return score(model.pairwise([sets[i] for i in rows])), score(plain.pairwise(queries, projected)), len(rows)


def _keep(model: WassersteinLMNN, record: dict[str, Any], target: Path, run: Run) -> None:
    """The model, its figures, its history and the picture of it."""
    from likewise import plot
    from likewise.store.checkpoint import save

    history = model.history_
    save(model, target)
    if history:
        lines = _rounds(history)
        figure = plot.curves(lines, title="training objective", xlabel="iteration", ylabel="J, transport re-solved")
        plot.save(figure, target.parent / "fit.png")
        plot.save(figure, run.path / "history.png")
    write_json(target.parent / "fit.json", record)
    own = record["leave_one_out"]
    figures = {"objective": record["objective"], "iterations": record["iterations"], "seconds": record["seconds"]}
    kept = {k: v for k, v in figures.items() if v is not None}
    run.finish(**kept, leave_one_out_learned=own["learned"], leave_one_out_unlearned=own["unlearned"])
    shutil.rmtree(run.path / PARTS, ignore_errors=True)


def _rounds(history: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """One curve a round: the impostors change between rounds, and the objective with them."""
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for step, line in enumerate(history):
        xs, ys = lines.setdefault(f"round {line['round'] + 1}", ([], []))
        xs.append(step)
        ys.append(float(line["objective"]))
    return lines


def _line(record: dict[str, Any], target: Path) -> str:
    own = record["leave_one_out"]
    return (
        f"{record['sets']} sets of {len(record['classes'])} classes, {record['iterations']} iterations; "
        f"leave-one-out 1-NN on the training sets: learned {own['learned']:.3f}, unlearned {own['unlearned']:.3f}; "
        f"in {target}"
    )
