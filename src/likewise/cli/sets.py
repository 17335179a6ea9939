"""`likewise sets`: all distances between many sets, and a metric learned from labelled ones."""

from __future__ import annotations

import contextlib
import dataclasses
import os
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
    flag,
    json_flag,
    out_flag,
    resume_flag,
    seed_flag,
    training_flags,
)
from likewise.errors import FileError, InputError, LikewiseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.sets import WassersteinLMNN
    from likewise.sets.data import SetCollection
    from likewise.store.run import Run
    from likewise.types import Signature

VALUES = ("kl", "paper", "divergence", "sharp")
LEARNING = {
    "Learning": (
        "multilevel",
        "gamma",
        "value",
        "k_targets",
        "k_impostors",
        "rho0",
        "rhot",
        "start",
        "max_iter",
        "rounds",
    ),
    "Classifying": ("rule", "n_neighbors", "n_jobs"),
}
"""The options of WassersteinLMNN that are flags; the others are for Python and `likewise papers mlml`."""
PARTS = "parts"
"""The folder in a run directory where finished folds and rounds are kept until the end."""
MOST_QUERIES = 1000
"""Leave-one-out accuracy asks at most this many sets (drawn by seed); the gallery is always whole."""


def reading_flags(function: Any) -> Any:
    """--features, --k, --every and --seed: how paths become sets; what is not given is the metric's, or the default."""
    for decorate in (
        seed_flag,
        count("--every", group="Reading", help="take each n-th frame of a video  [default: 1]"),
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


def read(path: str, how: dict[str, Any]) -> SetCollection:
    """The sets at a path; images that cannot be read are named on stderr."""
    from likewise.sets.data import list_sets, read_sets
    from likewise.store.run import progress

    if not Path(path).exists():
        raise FileError(f"{path}: no such file or folder")
    total = 0 if Path(path).is_file() else len(list_sets(path)[0])
    with progress(total, "reading sets") as advance:
        sets = read_sets(path, on_error="skip", progress=advance, **how)
    terminal.tell_left_out(sets.skipped)
    return sets


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
@out_flag("distances.npy", "the matrix; a .json beside it")
@flag("--metric", type=click.Path(), help="under this learned metric (a file of `likewise sets fit`)")
@flag("--metric-level", help="with --metric: under the metric of this level")
@flag("--gamma", type=click.FloatRange(0, min_open=True), help="smoothing; by default 0.05 × the median ground cost")
@flag("--value", type=click.Choice(VALUES), help="which number of the plan is the distance  [default: kl]")
@reading_flags
@count("--block", default=512, group="Running", help="rows and columns of a block")
@cluster_flags
@json_flag
def distances(path: str, out: str, metric: str | None, metric_level: str | None, as_json: bool, **given: Any) -> None:
    """All distances between the sets at PATH, as a matrix on disk, by blocks; an interrupted run resumes.

    PATH is class/object/images, object/images, a folder of videos, or an .npz of many sets. The .json beside the
    matrix names its rows. Finished blocks are kept in a folder OUT.parts until the matrix is whole.

    \b
    likewise sets distances albums/ --out distances.npy
    """
    from likewise.store.job import check_executor

    file = terminal.target(out, "out", (".npy",))
    check_executor(given["executor"], given["n_jobs"])
    model, level = metric_at(metric, metric_level)
    how = reading(given, model)
    sets = read(path, how)
    own = {} if model is None else {"gamma": model.gamma_, "value": model.value}
    settings = {name: given[name] or own.get(name, default) for name, default in (("gamma", "auto"), ("value", "kl"))}
    settings |= {name: given[name] for name in ("block", "n_jobs", "executor", "resume")}
    settings |= {} if model is None else {"metric": model.metric(level)}
    info = _solve(sets.signatures if model is None else model.project(sets.signatures), file, settings)
    labels = None if sets.labels is None else sets.labels.tolist()
    record = {**info, "path": path, "names": sets.names, "labels": labels, "left_out": _left_out(sets)}
    record |= {"features": how["features"] if sets.described else None, "metric": metric, "metric_level": metric_level}
    _link(file.with_suffix(".parts") / "distances.npy", file)
    terminal.write_json(file.with_suffix(".json"), record)
    shutil.rmtree(file.with_suffix(".parts"))
    n, m = info["shape"]
    terminal.result(f"{n}×{m} distances, {info['key']['value']}, gamma={info['gamma']:.4g}, in {file}", record, as_json)


def _left_out(sets: SetCollection) -> list[dict[str, str]]:
    return [{"name": name, "reason": reason} for name, reason in sets.skipped]


def _solve(points: list[Signature], file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Make the matrix in the folder of its parts, and say what is known of it.

    One that is finished already is only looked up, another is refused.
    """
    from likewise.sets import distance_matrix
    from likewise.store.run import read_json

    parts, about = file.with_suffix(".parts"), file.with_suffix(".json")
    put_back = settings["resume"] and not parts.exists() and file.is_file() and about.is_file()
    if put_back:
        parts.mkdir()
        _link(file, parts / "distances.npy")
        shutil.copyfile(about, parts / "distances.json")
    try:
        distance_matrix(points, out=parts, **settings)
        return read_json(parts / "distances.json")
    except InputError as error:
        if put_back:
            shutil.rmtree(parts)
        words = str(error).replace(str(parts), str(file if put_back else parts))
        words = words.replace("use another folder or resume=False", "use another --out or --no-resume")
        raise InputError(words) from None


def _link(made: Path, file: Path) -> None:
    """Give the finished matrix its name; linked where the file system can, so that a kill in between loses nothing."""
    from likewise.media import atomic

    with atomic(file) as temporary:
        with contextlib.suppress(OSError):
            os.link(made, temporary)
        if not temporary.exists():
            shutil.copyfile(made, temporary)


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("path", type=click.Path())
@out_flag("model.safetensors", "the file of the metric; its run directory is beside it, .run")
@count("--pca", least=0, default=100, help="learn on so many principal axes; 0: on all")
@flag("--overwrite", is_flag=True, show_default=False, help="replace an earlier model and its run directory")
@resume_flag
@reading_flags
@training_flags("likewise.sets.objective:LMNNOptions", LEARNING)
@json_flag
def fit(path: str, out: str, pca: int, overwrite: bool, resume: bool, as_json: bool, **given: Any) -> None:
    """Learn a metric from the labelled sets at PATH: class/object/images, class/videos, or an .npz with labels.

    Writes the metric (--out), fit.json and fit.png beside it, and a run directory with the configuration and history.
    metrics.jsonl there grows with every trial and iteration; finished folds and rounds are kept until the end, so that
    a stopped fit resumes (the round that was cut short is logged again).

    \b
    likewise sets fit albums/ --out model.safetensors
    """
    file = terminal.target(out, "out", (".safetensors",))
    run = _begin(file, overwrite, resume, {"path": path, "pca": pca, **given})
    how = reading(given)
    sets = read(path, how)
    if sets.labels is None:
        expected = "expected class/object/images, class/videos, or an .npz with labels"
        raise InputError(f"path: the sets in {path} have no classes; {expected}")
    model, seconds = _learn(sets, pca, given, how, run)
    record = _record(model, sets, seconds, path)
    _keep(model, record, file, run)
    own = record["leave_one_out"]
    words = (
        f"{record['sets']} sets of {len(record['classes'])} classes, {record['iterations']} iterations; "
        f"leave-one-out 1-NN on the training sets: learned {own['learned']:.3f}, unlearned {own['unlearned']:.3f}; "
        f"in {file}"
    )
    terminal.result(words, record, as_json)
    terminal.remark(f"see {file.parent / 'fit.png'}; the run is in {run.path}")


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
        model.fit(sets.signatures, sets.labels, watch=_logger(run, say), remember=job.keep)
    if job.resumed:
        terminal.remark(f"resumed after {', '.join(job.resumed)}")
    if sets.described:
        model.source_ = how
    return model, time.perf_counter() - began


def _logger(run: Run, say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """What `fit` calls after every step: a line of metrics.jsonl, and the same in words on a terminal's last line."""
    count = len(run.metrics())

    def watch(record: dict[str, Any]) -> None:
        nonlocal count
        run.log(count, **{"step_length" if k == "step" else k: v for k, v in record.items()})
        count += 1
        if record["stage"] == "choice":
            where = f"{record['fold']}, start {record['start']}, ρ = {record['rho']:g}"
            say(f"choosing: {where}, score {record['score']:.3f}")
        else:
            active = f"{record['active']} of {record['triplets']} triplets active"
            say(f"learning: round {record['round'] + 1}, J = {record['objective']:.5g}, {active}")

    return watch


def _record(model: WassersteinLMNN, sets: SetCollection, seconds: float, path: str) -> dict[str, Any]:
    import numpy as np

    labels = np.asarray(sets.labels)
    learned, unlearned, asked = leave_one_out(model, sets.signatures, labels)
    steps = [line["objective"] for line in model.history_]
    return {
        "path": path,
        "sets": len(sets),
        "classes": {str(c): int((labels == c).sum()) for c in model.classes_},
        "features": model.source_.get("features"),
        "dimensions": {"described": int(model.n_features_in_), "learned": len(model.M0_)},
        "gamma": model.gamma_,
        "start": model.start_,
        "rho": list(model.rho_),
        "rule": model.rule_,
        "objective": steps[-1] if steps else None,
        "objective_at_start": steps[0] if steps else None,
        "iterations": len(steps),
        "leave_one_out": {
            "learned": learned,
            "unlearned": unlearned,
            "queries": asked,
            "of": "the training sets, which the metric has seen",
        },
        "seconds": round(seconds, 3),
        "options": {k: v for k, v in dataclasses.asdict(model).items() if k != "verbose"},
        "left_out": _left_out(sets),
    }


def leave_one_out(model: WassersteinLMNN, sets: list[Signature], labels: NDArray[Any]) -> tuple[float, float, int]:
    """1-NN accuracy among the training sets, each set's own column left out: learned, unlearned, and of how many."""
    import numpy as np

    from likewise.sets import distances as pairwise

    rows = np.arange(len(sets))
    if len(rows) > MOST_QUERIES:
        rows = np.sort(np.random.default_rng(model.seed).choice(rows, MOST_QUERIES, replace=False))
    projected = model.project(sets)

    def score(D: NDArray[np.float64]) -> float:
        D = np.array(D)
        D[np.arange(len(rows)), rows] = np.inf
        return float((labels[D.argmin(axis=1)] == labels[rows]).mean())

    plain = pairwise([projected[i] for i in rows], projected, value=model.value, tol=model.tol)
    return score(model.pairwise([sets[i] for i in rows])), score(plain), len(rows)


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
    own = record["leave_one_out"]
    run.finish(**figures, leave_one_out_learned=own["learned"], leave_one_out_unlearned=own["unlearned"])
    shutil.rmtree(run.path / PARTS, ignore_errors=True)
