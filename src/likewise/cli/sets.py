"""`likewise sets`: all distances between many sets, and a metric learned from labelled ones."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import (
    cluster_flags,
    count,
    device_flag,
    flag,
    json_flag,
    out_flag,
    seed_flag,
    training_flags,
)
from likewise.errors import FileError, InputError, LikewiseError

if TYPE_CHECKING:
    from likewise.sets import WassersteinLMNN
    from likewise.sets.data import SetCollection
    from likewise.store.run import Run

VALUES = ("kl", "paper", "divergence", "sharp")
LEARNING = {
    "Learning": (*("multilevel", "gamma", "value", "rho0", "rhot", "start", "max_iter"),),
    "Classifying": ("rule", "n_jobs"),
}
"""The options of WassersteinLMNN that are flags; the others are for Python and `likewise papers mlml`."""
PARTS = "parts"
"""The folder in a run directory where finished folds and rounds are kept until the end."""


def reading_flags(function: Any) -> Any:
    """--features, --device, --k, --every, --seed: how paths become sets; the metric's, or the usual, unless given."""
    for decorate in (
        seed_flag,
        count("--every", group="Reading", help="take each n-th frame of a video  [default: 1]"),
        device_flag,
        count("--k", group="Reading", help="points of a set: every image, or so many k-means centres  [default: 8]"),
        flag("--features", group="Reading", type=click.Choice(["embed", "pixels", "lbp"]), help="  [default: embed]"),
    ):
        function = decorate(function)
    return function


def reading(given: dict[str, Any], model: WassersteinLMNN | None = None) -> dict[str, Any]:
    """How images become sets: what was not given is the model's, or the default."""
    usual = {"features": "embed", "k": 8, "every": 1} | ({} if model is None else model.source_)
    said = {name: given[name] for name in ("features", "k", "every") if given.get(name) is not None}
    return {**usual, **said, "seed": given["seed"]}


def read(path: str, how: dict[str, Any], device: str) -> tuple[SetCollection, list[dict[str, str]]]:
    """The sets at a path, and the images that cannot be read, which are named on stderr."""
    from likewise.images import default
    from likewise.sets.data import list_sets, read_sets
    from likewise.store.run import progress

    if not Path(path).exists():
        raise FileError(f"{path}: no such file or folder")
    total = 0 if Path(path).is_file() else len(list_sets(path)[0])
    moved = {} if device == "cpu" or how["features"] != "embed" else {"features": default(device=device)}
    with progress(total, "reading sets") as advance:
        sets = read_sets(path, on_error="skip", progress=advance, **how | moved)
    return sets, terminal.tell_left_out(sets.skipped)


def metric_at(path: str | None, level: str | None) -> tuple[Any, Any]:
    """The learned metric in a file, and the level of it that a word means: as it is spelt, or as a number."""
    from likewise.sets import WassersteinLMNN
    from likewise.store.checkpoint import load

    if path is None:
        if level is not None:
            raise InputError("metric-level: a level belongs to a learned metric; give its file with --metric")
        return None, None
    model = load(path)
    if not isinstance(model, WassersteinLMNN):
        raise InputError(f"{path}: expected a learned metric of sets, got {type(model).__name__}")
    known = {str(t): t for t in model.levels_}
    if level is not None and level not in known:
        raise InputError(f"metric-level: the metric has no level {level!r}; it has {', '.join(list(known)[:12])}")
    return model, None if level is None else known[level]


# ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("path", type=click.Path())
@out_flag("distances", "folder for distances.npy and distances.json")
@flag("--metric", type=click.Path(), help="under this learned metric (a file of `likewise sets fit`)")
@flag("--metric-level", help="with --metric: under the metric of this level")
@flag("--gamma", type=click.FloatRange(0, min_open=True), help="smoothing; by default 0.2 × the median ground cost")
@flag("--value", type=click.Choice(VALUES), help="which number of the plan is the distance  [default: divergence]")
@reading_flags
@count("--block", default=512, group="Running", help="rows and columns of a block")
@cluster_flags
@json_flag
def distances(path: str, out: str, metric: str | None, metric_level: str | None, as_json: bool, **given: Any) -> None:
    """All distances between the sets at PATH, as a matrix on disk, by blocks; an interrupted run resumes.

    PATH is class/object/images, object/images, a folder of videos, or an .npz of many sets. Writes distances.npy, and
    distances.json, which names its rows; finished blocks are kept beside them until the matrix is whole.

    \b
    likewise sets distances albums/ --out distances
    """
    from likewise.sets import distance_matrix
    from likewise.store.job import check_executor
    from likewise.store.run import read_json

    check_executor(given["executor"], given["n_jobs"])
    model, level = metric_at(metric, metric_level)
    folder, how = terminal.check_writable(Path(out)), reading(given, model)
    sets, left_out = read(path, how, given.pop("device"))
    if len(sets) < 2:
        unread = f"; {len(left_out)} images or sets cannot be read" if left_out else ""
        raise InputError(f"path: expected two sets or more to compare, got one in {path}{unread}")
    own = {} if model is None else {"gamma": model.gamma_, "value": model.value}
    usual = {"gamma": "auto", "value": "divergence"}
    settings = {name: given[name] or own.get(name, default) for name, default in usual.items()}
    settings |= {name: given[name] for name in ("block", "n_jobs", "executor", "resume")}
    settings |= {} if model is None else {"metric": model.metric(level)}
    try:
        distance_matrix(sets.signatures if model is None else model.project(sets.signatures), out=folder, **settings)
    except InputError as error:
        words = str(error).replace("use another folder or resume=False", "use another --out or --no-resume")
        raise InputError(words) from None
    info, labels = read_json(folder / "distances.json"), None if sets.labels is None else sets.labels.tolist()
    record = {**info, "path": path, "names": sets.names, "labels": labels, "left_out": left_out}
    record |= {"features": how["features"] if sets.described else None, "metric": metric, "metric_level": metric_level}
    terminal.write_json(folder / "distances.json", record)
    n, m = info["shape"]
    words = f"{n}×{m} distances, {info['key']['value']}, gamma={info['gamma']:.4g}, in {folder}"
    terminal.result(words, record, as_json)


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("path", type=click.Path())
@out_flag("model.safetensors", "the file of the metric; its run directory is beside it, .run")
@count("--pca", least=0, default=100, help="learn on so many principal axes; 0: on all")
@flag("--overwrite", is_flag=True, show_default=False, help="replace an earlier model and its run directory")
@reading_flags
@training_flags("likewise.sets.objective:LMNNOptions", LEARNING)
@json_flag
def fit(path: str, out: str, pca: int, overwrite: bool, resume: bool, as_json: bool, **given: Any) -> None:
    """Learn a metric from the labelled sets at PATH: class/object/images, class/videos, or an .npz with labels.

    Writes the metric (--out), fit.json and fit.png beside it, and a run directory with the configuration and history.
    metrics.jsonl there grows with every trial and iteration; finished folds and rounds are kept until the end, so that
    a stopped fit resumes.

    \b
    likewise sets fit albums/ --out model.safetensors
    """
    file = terminal.target(out, "out", (".safetensors",))
    run = _begin(file, overwrite, resume, {"path": path, "pca": pca, **given})
    how = reading(given)
    sets, left_out = read(path, how, given.pop("device"))
    if sets.labels is None:
        expected = "expected class/object/images, class/videos, or an .npz with labels"
        raise InputError(f"path: the sets in {path} have no classes; {expected}")
    model, seconds = _learn(sets, pca, given, how, run)
    record = _record(model, sets, seconds, path) | {"left_out": left_out}
    _keep(model, record, file, run)
    words = f"{record['sets']} sets of {len(record['classes'])} classes, {record['iterations']} iterations"
    if record["iterations"]:
        words += f", J from {record['objective_at_start']:.4g} to {record['objective']:.4g}"
    else:
        words += ": nothing learned was better on sets held out"
    words += f"; in {file}"
    terminal.result(words, record, as_json)
    for what, told in model.selection_.items():
        if isinstance(told, dict) and "gain" in told and told["chosen"] != told["usual"]:
            gain = f"{told['gain']:+.3f} ± {told['error']:.3f} on held-out sets"
            terminal.remark(f"{what}: {told['chosen']} instead of {told['usual']} ({gain})")
    picture = f"see {file.parent / 'fit.png'}; " if record["iterations"] else ""
    terminal.remark(f"{picture}the run is in {run.path}")


def _begin(file: Path, overwrite: bool, resume: bool, config: dict[str, Any]) -> Run:
    """The run directory, made before any work; an earlier one that came to its end is refused unless --overwrite.

    One that was stopped resumes if its configuration is the same, else it begins again.
    """
    from likewise.store.run import Run

    folder = file.with_suffix(".run")
    finished = [f for f in (file, folder / "result.json") if f.exists()]
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


def _learn(
    sets: SetCollection, pca: int, given: dict[str, Any], how: dict[str, Any], run: Run
) -> tuple[WassersteinLMNN, float]:
    """The fitted metric, and how long learning took; each step is logged in the run and told to who watches."""
    from likewise.sets import WassersteinLMNN
    from likewise.sets.lmnn import fit_identity
    from likewise.store.job import Job

    learning = {name: given[name] for names in LEARNING.values() for name in names}
    model = WassersteinLMNN(**learning, seed=given["seed"], n_components=pca or None)
    identity = fit_identity(sets.signatures, sets.labels, model.get_params())
    began = time.perf_counter()
    with (
        terminal.working("learning: first distances") as say,
        Job.begin(run.path / PARTS, identity, on_change="restart") as job,
    ):
        watch, remember = _logger(run, say, job.keep)
        model.fit(sets.signatures, sets.labels, watch=watch, remember=remember)
    if job.resumed:
        terminal.remark(f"resumed after {', '.join(job.resumed)}")
    if sets.described:
        model.source_ = how
    return model, time.perf_counter() - began


def _logger(run: Run, say: Callable[[str], None], keep: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """What `fit` calls after every step: a line of metrics.jsonl, and the same in words on a terminal's last line.

    And what it remembers by: a part that is made anew begins where the lines of the parts that are kept end.
    """
    count = logged = 0

    def remember(name: str, make: Callable[[], Any]) -> Any:
        nonlocal count, logged

        def logging() -> Any:
            nonlocal count
            run.rewind(logged)
            count = len(run.metrics())
            arrays, said = make()
            return arrays, {**said, "logged": run.logged()}

        arrays, said = keep(name, logging)
        logged = said["logged"]
        return arrays, said

    def watch(record: dict[str, Any]) -> None:
        nonlocal count
        run.log(count, **{"step_length" if k == "step" else k: _finite(v) for k, v in record.items()})
        count += 1
        if record["stage"] == "learning":
            active = f"{record['active']} of {record['triplets']} triplets active"
            say(f"learning: round {record['round'] + 1}, J = {record['objective']:.5g}, {active}")
        else:
            cell = ", ".join(f"{k} {record[k]:g}" for k in ("power", "shrinkage", "blur", "rho") if k in record)
            say(f"choosing: {record['fold']}, {cell}, score {record['score']:.3f}")

    return watch, remember


def _finite(value: Any) -> Any:
    """ "inf" for ∞, which JSON cannot hold: a ρ at which nothing is learned."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _record(model: WassersteinLMNN, sets: SetCollection, seconds: float, path: str) -> dict[str, Any]:
    import numpy as np

    labels = np.asarray(sets.labels)
    steps = [line["objective"] for line in model.history_]
    return {
        "path": path,
        "sets": len(sets),
        "classes": {str(c): int((labels == c).sum()) for c in model.classes_},
        "features": model.source_.get("features"),
        "dimensions": {"described": int(model.n_features_in_), "learned": len(model.M0_)},
        "gamma": model.gamma_,
        "start": model.start_._asdict(),
        "rho": [_finite(rho) for rho in model.rho_],
        "rule": model.rule_,
        "selection": model.selection_,
        "objective": steps[-1] if steps else None,
        "objective_at_start": steps[0] if steps else None,
        "iterations": len(steps),
        "seconds": round(seconds, 3),
        "options": {k: v for k, v in dataclasses.asdict(model).items() if k != "verbose"},
    }


def _keep(model: WassersteinLMNN, record: dict[str, Any], file: Path, run: Run) -> None:
    """The model, its figures, its history and the curve of the objective."""
    from likewise import plot
    from likewise.store.checkpoint import save

    save(model, file)
    # One curve a round: the impostors change between rounds, and the objective with them.
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for step, line in enumerate(model.history_):
        xs, ys = lines.setdefault(f"round {line['round'] + 1}", ([], []))
        xs.append(step)
        ys.append(float(line["objective"]))
    if lines:
        figure = plot.curves(lines, title="training objective", xlabel="iteration", ylabel="J, transport re-solved")
        plot.save(figure, file.parent / "fit.png")
    terminal.write_json(file.parent / "fit.json", record)
    figures = {k: record[k] for k in ("objective", "iterations", "seconds") if record[k] is not None}
    run.finish(**figures)
    shutil.rmtree(run.path / PARTS, ignore_errors=True)
