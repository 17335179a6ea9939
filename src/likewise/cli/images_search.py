"""`likewise images embed`: a folder to rows; and --model, as every command of the level takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from likewise.cli.terminal import check_writable, result, tell_left_out

if TYPE_CHECKING:
    from likewise.images.model import Skipped

F = TypeVar("F", bound=Callable[..., Any])


def with_model(function: F) -> F:
    """--model, a file that `likewise images train` or `likewise.save` wrote."""
    return click.option(
        "--model", type=click.Path(), help="a trained model; by default the one that needs no training"
    )(function)


def model_at(path: str | None) -> Any:
    """The model in a file, or the default one."""
    from likewise.errors import FileError
    from likewise.images.model import default
    from likewise.store.checkpoint import load

    if path is None:
        return default()
    found = load(path)
    if not hasattr(found, "embed"):
        raise FileError(f"{path}: holds a {type(found).__name__}, which does not embed pictures")
    return found


def _left_out(skipped: Sequence[Skipped]) -> list[dict[str, str]]:
    """Tell on stderr what could not be read; the same for the JSON."""
    tell_left_out([(s.name, s.reason) for s in skipped])
    return [{"name": s.name, "reason": s.reason} for s in skipped]


# ── embed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--out", required=True, type=click.Path(), help="rows.npz: rows and names")
@with_model
@click.option("--n-jobs", default=1, show_default=True, help="processes; one already uses all cores")
@click.option("--executor", help="dask (a cluster on this machine), or the address of a Dask scheduler (tcp://…)")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with what an interrupted run left")
@click.option("--json", "as_json", is_flag=True, help="print what was done as JSON")
def embed(
    folder: str, out: str, model: str | None, n_jobs: int, executor: str | None, resume: bool, as_json: bool
) -> None:
    """Turn every picture below FOLDER into a row of numbers, near each other where pictures are alike.

    An interrupted run is gone on with. A picture that cannot be read is named, counted and left out.
    """
    from likewise.images.embedding import embed_folder

    check_writable(Path(out).absolute().parent)
    found = embed_folder(folder, out, model_at(model), executor=executor, n_jobs=n_jobs, resume=resume, progress=True)
    record = {"rows": len(found), "dim": int(found.rows.shape[1]), "model": found.model, "out": out}
    result(
        f"{len(found)} × {found.rows.shape[1]} rows of {found.model} in {out}",
        {**record, "skipped": _left_out(found.skipped)},
        as_json,
    )
