"""`likewise images embed | index | search`: a folder to rows, a folder to a gallery, a picture to its like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from likewise.cli.terminal import DRAWN, check_writable, remark, result, target, tell_left_out, warn

if TYPE_CHECKING:
    from likewise.images.gallery import Gallery
    from likewise.images.model import Skipped
    from likewise.types import Hit

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["auto", "flat", "ivf", "hnsw"]


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
@click.option("--out", required=True, type=click.Path(), help="rows.npz (rows and names), or rows.npy with rows.json")
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


# ── index ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--out", required=True, help="the gallery: a folder, or milvus://host:port/collection")
@with_model
@click.option(
    "--kind",
    type=click.Choice(["auto", "flat", "ivf", "hnsw"]),
    help="flat is exact; ivf and hnsw are faster and find nearly all; by default auto: ivf above 100,000 pictures",
)
@click.option(
    "--recall", type=click.FloatRange(0, 1, min_open=True), help="to tune an index to; by default 0.99, or as it is"
)
@click.option("--prune", is_flag=True, help="take out the pictures whose files are gone")
@click.option("--check", is_flag=True, help="read the whole gallery afterwards, and say what is wrong")
@click.option("--json", "as_json", is_flag=True, help="print what was done as JSON")
def index(
    folder: str,
    out: str,
    model: str | None,
    kind: Kind | None,
    recall: float | None,
    prune: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Make the pictures below FOLDER searchable, or bring a gallery up to date with them.

    In a gallery that is there already, new pictures are added, changed ones embedded anew, the others left alone.
    """
    from likewise.errors import FileError
    from likewise.images.gallery import Gallery
    from likewise.images.stores import places

    if places.exists(out):
        gallery = Gallery.open(out, None if model is None else model_at(model))
        about = gallery.store.about
        if kind is not None or recall is not None:
            gallery.reindex(kind or about.kind, recall or about.recall)
        gallery.add(folder, progress=True)
    else:
        gallery = Gallery.build(model_at(model), folder, out, kind=kind or "auto", recall=recall or 0.99, progress=True)
    with gallery:
        gone = gallery.prune() if prune else 0
        wrong = gallery.check() if check else []
        line = f"{gallery!r} in {out}: {gallery.report}" + (f", {gone} pruned" if gone else "")
        record = {**gallery.describe(), "out": out, "pruned": gone, **_counts(gallery)}
        result("\n".join([line, *_measured(record)]), record, as_json)
    if wrong:
        for problem in wrong[1:]:
            warn(problem)
        raise FileError(wrong[0])


def _counts(gallery: Gallery) -> dict[str, Any]:
    done = gallery.report
    return {
        "added": done.added,
        "updated": done.updated,
        "unchanged": done.unchanged,
        "skipped": _left_out(done.skipped),
    }


def _measured(record: dict[str, Any]) -> list[str]:
    facts = record["index"]
    if facts is None:
        return []
    return [f"recall@10 {facts['recall']:.4f} on {facts['queries']} pictures that the index had not seen"]


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("query", nargs=-1, required=True, type=click.Path())
@click.option("--gallery", "place", required=True, help="the gallery: a folder, or milvus://host:port/collection")
@with_model
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="how many to find")
@click.option("--label", help="only pictures that lie in a subfolder of this name")
@click.option("--under", help="only pictures below this folder")
@click.option("--out", type=click.Path(), help="write a picture of the ranking (.png, .svg, .pdf, .jpg)")
@click.option("--json", "as_json", is_flag=True, help="print the ranking as JSON")
def search(
    query: tuple[str, ...],
    place: str,
    model: str | None,
    k: int,
    label: str | None,
    under: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Find the pictures of a gallery that are most like each QUERY: a picture, or a folder of them."""
    from likewise.images import data
    from likewise.images.gallery import Gallery

    picture = target(out, "out", DRAWN)
    with Gallery.open(place, None if model is None else model_at(model)) as gallery:
        queries = [str(q) for q in data.pictures(query)]
        found = gallery.search(queries, k, under=under, label=label)
        lines = _table(queries, found, gallery.root)
        about = {"gallery": place, "model": gallery.store.about.model, "kind": gallery.describe()["kind"]}
    if picture is not None:
        _draw(queries, found, picture)
        remark(f"see {picture}")
    rankings = [{"query": q, "hits": [vars(h) for h in hits]} for q, hits in zip(queries, found, strict=True)]
    result(lines, {**about, "k": k, "label": label, "under": under, "queries": rankings}, as_json)


def _table(queries: Sequence[str], found: Sequence[Sequence[Hit]], root: Path) -> str:
    """Rank, distance and path below the root, query by query."""
    lines = []
    for query, hits in zip(queries, found, strict=True):
        lines += [query] if len(queries) > 1 else []
        lines += [f"{hit.rank:>4}  {hit.distance:.4f}  {_short(hit.path, root)}" for hit in hits]
    return "\n".join(lines)


def _short(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _draw(queries: Sequence[str], found: Sequence[Sequence[Hit]], path: Path) -> None:
    """Each query and what was found for it, a row; a file that has gone since leaves its place empty."""
    from likewise import plot

    pictures = [[_shown(h.path) for h in hits] for hits in found]
    captions = [[f"{h.distance:.3f}" for h in hits] for hits in found]
    names = [Path(q).name for q in queries]
    plot.save(plot.ranking([_shown(q) for q in queries], pictures, names=names, captions=captions), path)


def _shown(path: str) -> Any:
    """The picture at a path, small, or None where it cannot be read any more."""
    from likewise.errors import LikewiseError
    from likewise.plot.images import thumbnail

    try:
        return thumbnail(path)
    except LikewiseError:
        return None
