"""`likewise index` and `likewise search`: photos made searchable, and searched with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.terminal import check_writable, remark, result, tell_left_out, warn

if TYPE_CHECKING:
    from likewise.search.collection import Collection
    from likewise.search.result import Hit, Result

PLACE = "likewise-index"
HEAD = "      verdict         distance  transport  matches that agree"


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--out", default=PLACE, show_default=True, help="the index: a folder, or milvus://host:port/collection")
@click.option("--model", type=click.Path(), help="embed with this model (a file of `likewise images train`)")
@click.option("--kind", type=click.Choice(["auto", "flat", "ivf"]), help="exact (flat), or an index of FAISS")
@click.option("--check", is_flag=True, help="read the whole index afterwards, and say what is wrong")
@click.option("--json", "as_json", is_flag=True, help="print what was done as JSON")
def index(folder: str, out: str, model: str | None, kind: str | None, check: bool, as_json: bool) -> None:
    """Make the photos below FOLDER searchable.

    Once more brings the index up to date: new photos are added, changed ones embedded anew, deleted ones taken out.
    It can be stopped at any moment, and goes on where it was.
    """
    from likewise.errors import FileError
    from likewise.search import Collection

    with Collection.build(folder, out, model=_model(model), kind=kind, progress=True) as collection:
        done = collection.report
        tell_left_out([(s.name, s.reason) for s in done.skipped])
        wrong = collection.check() if check else []
        record = {**collection.describe(), "out": out, "added": done.added, "updated": done.updated}
        record |= {"unchanged": done.unchanged, "removed": done.removed}
        record["skipped"] = [{"name": s.name, "reason": s.reason} for s in done.skipped]
        _elsewhere(collection, folder)
        sound = ["every byte was read: nothing is wrong"] if check and not wrong else []
        result("\n".join([f"{len(collection):,} photos in {out}: {done}", *sound]), record, as_json)
    for problem in wrong[1:]:
        warn(problem)
    if wrong:
        raise FileError(wrong[0])


def _elsewhere(collection: Collection, folder: str) -> None:
    """Say so where an index that was there already is of another folder."""
    root = collection.root
    if Path(folder).resolve() != Path(root).resolve():
        warn(f"{collection.place} is the index of {root}; the photos of {folder} were brought up to date in it")


@click.command()
@click.argument("query", nargs=-1, type=click.Path())
@click.option("--index", "place", default=PLACE, show_default=True, help="the index: a folder, or milvus://…")
@click.option("--model", type=click.Path(), help="the model that made the index, where it does not hold it itself")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="how many to find")
@click.option(
    "--shortlist", default=100, show_default=True, type=click.IntRange(1), help="candidates that are re-ranked"
)
@click.option("--rerank/--no-rerank", default=True, show_default=True, help="order candidates by transport of parts")
@click.option(
    "--verify", default=5, show_default=True, type=click.IntRange(0), help="how many of the best are verified"
)
@click.option("--thorough", is_flag=True, help="verify slowly: other viewpoints are tried, too, seconds a hit")
@click.option("--under", help="only photos below this folder")
@click.option("--label", help="only photos that lie in a subfolder of this name")
@click.option("--others", is_flag=True, help="leave out QUERY itself, where it is a photo of the index")
@click.option("--each", is_flag=True, help="search for every QUERY by itself, not for one thing seen in all of them")
@click.option("--duplicates", is_flag=True, help="no query: group the photos that are copies of one another")
@click.option("--out", type=click.Path(), help="write a page of the results (.html), or a picture (.png …)")
@click.option("--json", "as_json", is_flag=True, help="print the results as JSON")
def search(
    query: tuple[str, ...], place: str, model: str | None, others: bool, each: bool, duplicates: bool, out: str | None,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Find the photos that show what QUERY shows: a photo, several of the same thing, a folder of such, or a video.

    Candidates are found by embedding, ordered by transport between their parts, and the best are verified by matches
    that agree on one geometry. Every hit says how probable it is to show the same, and why; --out page.html shows it.
    """
    from likewise.errors import InputError

    if bool(query) == duplicates:
        raise InputError(
            "query: --duplicates takes none" if query else "query: expected a photo or a video to search for"
        )
    if duplicates and out is not None:
        raise InputError("out: --duplicates draws nothing; --json gives the groups to a program")
    _check_out(out, several=each and len(query) > 1)
    with _opened(place, model) as collection:
        if duplicates:
            _duplicates(collection, as_json)
            return
        options = {**given, "leave_out": query if others else ()}
        found = [collection.search(q, **options) for q in (query if each else [_asked(query)])]
        root = collection.root
    if out is not None:
        _write(found, Path(out))
        remark(f"see {out}")
    records = [one.to_dict() for one in found]
    lines = "\n".join(_table(one, root) for one in found)
    result(lines, records[0] if len(found) == 1 else {"queries": records}, as_json)


def _asked(query: tuple[str, ...]) -> Any:
    return query[0] if len(query) == 1 else list(query)


def _opened(place: str, model: str | None) -> Collection:
    from likewise.errors import FileError
    from likewise.search import Collection

    if not Collection.exists(place):
        raise FileError(f"{place}: no index here; make one with `likewise index FOLDER`, or name it with --index")
    return Collection.open(place, _model(model))


def _model(path: str | None) -> Any:
    from likewise.store.checkpoint import load

    return None if path is None else load(path)


def _check_out(out: str | None, *, several: bool) -> None:
    from likewise.errors import InputError

    if out is None:
        return
    if Path(out).suffix.lower() not in (".html", ".png", ".svg", ".pdf", ".jpg"):
        raise InputError(f"out: expected a name that ends in .html, .png, .svg, .pdf or .jpg, got {out!r}")
    if several and Path(out).suffix.lower() != ".html":
        raise InputError("out: a picture shows one query; write a page (.html) for several")
    check_writable(Path(out).absolute().parent)


def _write(found: list[Result], path: Path) -> None:
    from likewise.search.result import write_page

    if path.suffix.lower() == ".html":
        write_page(found, path)
    else:
        found[0].plot(path)


def _table(found: Result, root: Path) -> str:
    """Rank, verdict, distances and path below the root of every hit."""
    lines = [", ".join(found.query.names[:3]) + (" …" if len(found.query) > 3 else "")]
    lines += [HEAD] if found.hits else []
    lines += [f"{hit.rank:>4}  {_words(hit)}  {_short(hit.path, root)}" for hit in found.hits]
    lines += [] if found.hits else ["      nothing found: the index holds no photo that takes part"]
    return "\n".join([*lines, *(f"      {note}" for note in found.notes)])


def _words(hit: Hit) -> str:
    local = "–" if hit.local_distance is None else f"{hit.local_distance:.4f}"
    seen = "not verified" if hit.evidence is None else f"{hit.evidence.n} of {len(hit.evidence.matches)}"
    return f"{hit.verdict:<9} {hit.probability:>4.0%}  {hit.distance:>8.4f}  {local:>9}  {seen:<18}"


def _short(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _duplicates(collection: Collection, as_json: bool) -> None:
    groups = collection.duplicates(progress=True)
    root = collection.root
    lines = [f"{len(groups)} groups of near-duplicates among {len(collection)} photos"]
    lines += ["\n".join([f"group {i}", *(f"  {_short(p, root)}" for p in g)]) for i, g in enumerate(groups, 1)]
    result("\n".join(lines), {"index": collection.place, "photos": len(collection), "groups": groups}, as_json)
