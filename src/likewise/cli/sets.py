"""`likewise sets`: compare two sets, measure all pairs of many, learn a metric, and see how good it is."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from likewise.cli import LazyGroup
from likewise.cli.sources import FEATURES, Reader
from likewise.cli.terminal import check_writable, labels_of, remark, result, write_json
from likewise.errors import InputError
from likewise.train.options import add_options, option

if TYPE_CHECKING:
    from likewise.sets.compare import SetComparison
    from likewise.sets.data import SetCollection
    from likewise.sets.distance_matrix import DistanceMatrix
    from likewise.sets.lmnn import WassersteinLMNN
    from likewise.types import Signature


@click.group(
    cls=LazyGroup,
    lazy={
        "fit": ("likewise.cli.sets_fit:fit", "Learn a metric from labelled sets."),
    },
)
def sets() -> None:
    """How alike are two bags of features? A set is a folder of pictures, a video, or an entry of an .npz file."""


@dataclass(frozen=True)
class Reading:
    """How paths become sets."""

    features: Literal["auto", "embed", "pixels", "lbp"] = option(
        "auto",
        "embed: 1280 numbers of a network; pixels: grey, 20 × 20; lbp: local patterns; auto: embed or the model's",
    )
    k: int | str = option(
        "auto",
        "points of a set: every picture, or as many k-means centres; auto: 8 or the model's",
        low=1,
        choices=("auto",),
    )
    every: int | str = option("auto", "every n-th frame of a video; auto: 1 or the model's", low=1, choices=("auto",))
    seed: int = option(0, "seed of k-means", low=0)


@dataclass(frozen=True)
class Plan:
    """How two sets are compared."""

    gamma: float | str = option(
        "auto", "smoothing of the plan; auto: 0.05 × the median ground cost, or the model's", above=0, choices=("auto",)
    )
    value: Literal["auto", "kl", "paper", "divergence", "sharp"] = option(
        "auto", "which number of the plan is the distance; auto: kl or the model's"
    )
    tol: float = option(1e-6, "marginal error at which a solve stops", above=0, high=0.1)


def reader_of(given: dict[str, Any], model: WassersteinLMNN | None = None) -> Reader:
    """A Reader from the flags of Reading; what was not said is the model's, or the default."""

    def said(name: str, default: Any) -> Any:
        if given[name] != "auto":
            return given[name]
        return default if model is None else model.source_.get(name, default)

    return Reader(said("features", FEATURES[0]), said("k", 8), said("every", 1), given["seed"])


def model_at(path: str | None) -> WassersteinLMNN | None:
    """The learned metric in a file."""
    if path is None:
        return None
    from likewise.sets import WassersteinLMNN
    from likewise.store.checkpoint import load

    model = load(path)
    if not isinstance(model, WassersteinLMNN):
        raise InputError(f"{path}: expected a learned metric of sets, got {type(model).__name__}")
    return model


def check_level(model: WassersteinLMNN | None, level: str | None) -> Any:
    """The level that a word on the command line means: as it is spelt, or as the number that it spells."""
    if level is None:
        return None
    if model is None:
        raise InputError("level: a level belongs to a learned metric; give its file with --metric")
    known = {str(t): t for t in model.levels_}
    if level not in known:
        raise InputError(f"level: the metric has no level {level!r}; it has {', '.join(list(known)[:12])}")
    return known[level]


# ── compare ───────────────────────────────────────────────────────────────────────────────────────────────────────


@sets.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--out", default=".", show_default=True, type=click.Path(), help="folder for compare.png and compare.json"
)
@click.option("--metric", type=click.Path(), help="compare under this learned metric (a file of `likewise sets fit`)")
@click.option("--level", help="with --metric: under the metric of this level (a class, unless trained otherwise)")
@add_options(Plan)
@add_options(Reading)
@click.option("--json", "as_json", is_flag=True, help="print the whole comparison as JSON")
def compare(a: str, b: str, out: str, metric: str | None, level: str | None, as_json: bool, **given: Any) -> None:
    """Compare two sets: their distance, and which part of one answers to which part of the other.

    A and B are folders of pictures, videos, single pictures, or .npz files (file.npz#name for one set of many).
    Writes compare.png (the plan: thumbnails joined by lines of mass) and compare.json.
    """
    model = model_at(metric)
    named = check_level(model, level)
    check_writable(Path(out))
    reader = reader_of(given, model)
    p, q = reader.one(a), reader.one(b)
    reader.tell()
    found = _compared(p, q, model, named, given)
    record = {**found.to_dict(), "a": a, "b": b, "metric": metric, "metric_level": level, "features": reader.features}
    record["left_out"] = reader.left_out()
    from likewise.sets.data import thumbnails

    pictures = thumbnails(p), thumbnails(q)
    title = f"{found.value} distance {found.distance:.4g}"
    found.plot(Path(out) / "compare.png", thumbnails=pictures, labels=labels_of(a, b), title=title)
    write_json(Path(out) / "compare.json", record)
    result(repr(found), record, as_json)
    remark(f"see {Path(out) / 'compare.png'}")


def _compared(
    p: Signature, q: Signature, model: WassersteinLMNN | None, level: Any, given: dict[str, Any]
) -> SetComparison:
    if model is not None:
        return model.compare(p, q, level=level, gamma=given["gamma"], value=_value(given, model.value))
    from likewise.sets import compare

    return compare(p, q, gamma=given["gamma"], value=_value(given, "kl"), tol=given["tol"])


def _value(given: dict[str, Any], auto: str) -> Any:
    return auto if given["value"] == "auto" else given["value"]


# ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────────


@sets.command()
@click.argument("path", type=click.Path())
@click.option(
    "--out", default="distances.npy", show_default=True, type=click.Path(), help="the matrix; a .json beside it"
)
@click.option("--metric", type=click.Path(), help="under this learned metric (a file of `likewise sets fit`)")
@click.option("--level", help="with --metric: under the metric of this level")
@add_options(Plan)
@add_options(Reading)
@click.option("--block", default=512, show_default=True, type=click.IntRange(1), help="rows and columns of a block")
@click.option("--n-jobs", default=1, show_default=True, help="processes that solve blocks; -1 is all cores")
@click.option("--executor", help="dask (a cluster on this machine), or the address of a Dask scheduler (tcp://…)")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with what an interrupted run left")
@click.option("--json", "as_json", is_flag=True, help="print what stands in the .json")
def distances(
    path: str,
    out: str,
    metric: str | None,
    level: str | None,
    block: int,
    n_jobs: int,
    executor: str | None,
    resume: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """All distances between the sets at PATH, as a matrix on disk, by blocks; an interrupted run is gone on with.

    PATH is class/object/pictures, object/pictures, a folder of videos, or an .npz of many sets. The .json beside the
    matrix names its rows. Finished blocks are kept in a folder OUT.parts until the matrix is whole.
    """
    from likewise.store.job import check_executor

    target = _matrix_file(out)
    check_executor(executor, n_jobs)
    model = model_at(metric)
    named = check_level(model, level)
    reader = reader_of(given, model)
    found = reader.many(path)
    reader.tell()
    settings = _settings(given, model, named)
    points = found.signatures if model is None else model.project(found.signatures)
    parts = target.with_suffix(".parts")
    settings |= {"block": block, "executor": executor, "n_jobs": n_jobs, "resume": resume}
    whole = _solved(points, parts, target, settings)
    record = {**whole.info, **_rows(found, path, reader), "metric": metric, "metric_level": level}
    _take_out(whole.path / "distances.npy", target)
    write_json(target.with_suffix(".json"), record)
    shutil.rmtree(parts)
    n, m = whole.shape
    result(f"{n}×{m} distances, {record['key']['value']}, gamma={whole.gamma:.4g}, in {target}", record, as_json)


def _matrix_file(out: str) -> Path:
    target = Path(out)
    if target.suffix != ".npy":
        raise InputError(f"out: expected the name of a .npy file, got {out!r}")
    check_writable(target.parent)
    return target


def _settings(given: dict[str, Any], model: WassersteinLMNN | None, level: Any) -> dict[str, Any]:
    """γ, value, tol and metric for the matrix."""
    if model is None:
        return {"gamma": given["gamma"], "value": _value(given, "kl"), "tol": given["tol"]}
    gamma = model.gamma_ if given["gamma"] == "auto" else given["gamma"]
    return {
        "gamma": gamma,
        "value": _value(given, model.value),
        "tol": given["tol"],
        "metric": model.metric(level),
    }


def _solved(points: list[Signature], parts: Path, target: Path, settings: dict[str, Any]) -> DistanceMatrix:
    """The matrix in the folder of its parts; one that is finished already is only looked up, another is refused."""
    from likewise.sets.distance_matrix import distance_matrix

    put_back = settings["resume"] and not parts.exists() and _put_back(target, parts)
    try:
        return distance_matrix(points, out=parts, **settings)
    except InputError as error:
        if put_back:
            shutil.rmtree(parts)
        words = str(error).replace(str(parts), str(target if put_back else parts))
        raise InputError(
            words.replace("use another folder or resume=False", "use another --out or --no-resume")
        ) from None


def _put_back(target: Path, parts: Path) -> bool:
    """Show a finished matrix to `distance_matrix`, which knows whether it is the one that is asked for."""
    about = target.with_suffix(".json")
    if not (target.is_file() and about.is_file()):
        return False
    parts.mkdir()
    _take_out(target, parts / "distances.npy")
    shutil.copyfile(about, parts / "distances.json")
    return True


def _rows(found: SetCollection, path: str, reader: Reader) -> dict[str, Any]:
    labels = None if found.labels is None else found.labels.tolist()
    features = reader.features if found.described else None
    return {"path": path, "names": found.names, "labels": labels, "features": features, "left_out": reader.left_out()}


def _take_out(made: Path, target: Path) -> None:
    """Give the finished matrix its name; linked where the file system can, so that a kill in between loses nothing."""
    from likewise.media import atomic

    with atomic(target) as temporary:
        with contextlib.suppress(OSError):
            os.link(made, temporary)
        if not temporary.exists():
            shutil.copyfile(made, temporary)
