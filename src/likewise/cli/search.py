"""`likewise index`, `search` and `studio`: photos made searchable, searched with reasons, and the local page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import count, device_flag, flag, json_flag, model_flag
from likewise.errors import FileError, InputError

if TYPE_CHECKING:
    from likewise.search import Collection, Result

PLACE = "likewise-index"


@click.command(cls=Command)
@click.argument("folder", type=click.Path())
@flag("--out", default=PLACE, help="the index: a folder, or milvus://host:port/collection")
@model_flag("embed with this model (a file of `likewise images train`)")
@device_flag
@flag("--kind", type=click.Choice(["auto", "flat", "ivf"]), help="exact (flat), or an index of FAISS")
@flag("--check", is_flag=True, show_default=False, help="read the whole index afterwards, and say what is wrong")
@json_flag
def index(folder: str, out: str, model: str | None, device: str, kind: str | None, check: bool, as_json: bool) -> None:
    """Make the photos below FOLDER searchable; run again to update.

    New photos are added, changed ones embedded again, deleted ones removed. It can be stopped at any moment, and
    resumes where it was.

    \b
    likewise index photos/
    """
    from likewise.search import Collection

    with Collection.build(folder, out, model=_model(model, device), kind=kind, progress=True) as collection:
        done = collection.report
        skipped = [(s.name, s.reason) for s in done.skipped]
        terminal.tell_left_out(skipped)
        wrong = collection.check() if check else []
        record = {**collection.describe(), "out": out, "added": done.added, "updated": done.updated}
        record |= {"unchanged": done.unchanged, "removed": done.removed}
        record["skipped"] = [{"name": name, "reason": reason} for name, reason in skipped]
        root = collection.root
        if Path(folder).resolve() != Path(root).resolve():
            terminal.warn(f"{collection.place} is the index of {root}; the photos of {folder} were updated in it")
        sound = ["every byte was read: nothing is wrong"] if check and not wrong else []
        terminal.result("\n".join([f"{len(collection):,} photos in {out}: {done}", *sound]), record, as_json)
    for problem in wrong[1:]:
        terminal.warn(problem)
    if wrong:
        raise FileError(wrong[0])


def _model(path: str | None, device: str) -> Any:
    """None is the index's own, or the default; a device needs a model to be moved there."""
    from likewise.cli.images import model_at

    return None if path is None and device == "cpu" else model_at(path, device)


@click.command(cls=Command)
@click.argument("query", nargs=-1, type=click.Path())
@flag("--index", "place", default=PLACE, help="the index: a folder, or milvus://…")
@model_flag("the model that made the index, where it does not hold it itself")
@device_flag
@count("-k", default=10, help="how many to find")
@count("--shortlist", default=100, help="candidates that are re-ranked")
@flag("--rerank/--no-rerank", default=True, help="order candidates by local similarity")
@count("--verify", least=0, default=5, help="how many of the best are verified")
@flag("--thorough", is_flag=True, show_default=False, help="verify slowly: other viewpoints are tried, too")
@flag("--under", help="only photos below this folder")
@flag("--label", help="only photos that lie in a subfolder of this name")
@flag("--others", is_flag=True, show_default=False, help="leave out QUERY itself, where it is a photo of the index")
@flag("--each", is_flag=True, show_default=False, help="search for every QUERY by itself, not one thing seen in all")
@flag("--duplicates", is_flag=True, show_default=False, help="no query: group the photos that are copies")
@flag("--out", type=click.Path(), help="write a page of the results (.html), or a figure (.png …)")
@json_flag
def search(
    query: tuple[str, ...],
    place: str,
    model: str | None,
    device: str,
    others: bool,
    each: bool,
    duplicates: bool,
    out: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the photos that show what QUERY shows: a photo, several of the same thing, a folder of such, or a video.

    Candidates are found by embedding, ordered by local similarity, and the best are verified by the inliers of one
    geometry. Every hit says how probable it is to show the same, and why; --out page.html shows it.

    \b
    likewise search query.jpg --out found.html
    likewise search --duplicates
    """
    from likewise.search import Collection
    from likewise.search.result import write_page

    if bool(query) == duplicates:
        expected = "--duplicates takes none" if query else "expected a photo or a video to search for"
        raise InputError(f"query: {expected}")
    if duplicates and out is not None:
        raise InputError("out: --duplicates draws nothing; --json gives the groups to a program")
    file = None if out is None else terminal.target(out, "out", (".html", ".png", ".svg", ".pdf", ".jpg"))
    if file is not None and file.suffix.lower() != ".html" and each and len(query) > 1:
        raise InputError("out: a figure shows one query; write a page (.html) for several")
    if not Collection.exists(place):
        raise FileError(f"{place}: no index here; make one with `likewise index FOLDER`, or name it with --index")
    with Collection.open(place, _model(model, device)) as collection:
        root = collection.root
        if duplicates:
            _duplicates(collection, root, as_json)
            return
        options = {**given, "leave_out": query if others else ()}
        asked: list[Any] = list(query) if each else [query[0] if len(query) == 1 else list(query)]
        results = [collection.search(q, **options) for q in asked]
    if file is not None:
        write_page(results, file) if file.suffix.lower() == ".html" else results[0].plot(file)
        terminal.remark(f"see {out}")
    records = [one.to_dict() for one in results]
    lines = "\n".join(_table(one, root) for one in results)
    terminal.result(lines, records[0] if len(results) == 1 else {"queries": records}, as_json)


def _table(found: Result, root: Path) -> str:
    """Rank, verdict, distances and path below the root of every hit."""
    lines = [", ".join(map(terminal.quote, found.query.names[:3])) + (" …" if len(found.query) > 3 else "")]
    rows = [("rank", "verdict", "", "distance", "local", "inliers", "photo")]
    for hit in found.hits:
        local = "–" if hit.local_distance is None else f"{hit.local_distance:.4f}"
        seen = "not verified" if hit.evidence is None else f"{hit.evidence.n} of {len(hit.evidence.matches)}"
        numbers = (f"{hit.probability:.0%}", f"{hit.distance:.4f}", local, seen)
        rows.append((f"{hit.rank:>4}", hit.verdict, *numbers, _below(hit.path, root)))
    table = zip(terminal.columns([row[:-1] for row in rows]), rows, strict=True)
    lines += (
        [f"{line}  {row[-1]}" for line, row in table]
        if found.hits
        else ["nothing found: the index holds no photo that takes part"]
    )
    return "\n".join([*lines, *(f"      {note}" for note in found.notes)])


def _below(path: str, root: Path) -> str:
    return terminal.quote(Path(path).relative_to(root) if Path(path).is_relative_to(root) else path)


def _duplicates(collection: Collection, root: Path, as_json: bool) -> None:
    groups = collection.duplicates(progress=True)
    lines = [f"{len(groups)} groups of near-duplicates among {len(collection)} photos"]
    for i, group in enumerate(groups, 1):
        lines += [f"group {i}", *(f"  {_below(path, root)}" for path in group)]
    terminal.result("\n".join(lines), {"index": collection.place, "photos": len(collection), "groups": groups}, as_json)


@click.command(cls=Command)
@click.argument("folders", nargs=-1, metavar="[FOLDER or INDEX]...", type=click.Path())
@flag("--runs", multiple=True, type=click.Path(), help="a run directory, or a folder of them; may be repeated")
@flag("--generator", metavar="SPEC", help="a generator of your own: module:attribute, or a file of weights")
@flag("--real", type=click.Path(path_type=Path), help="real images that the generator is measured against")
@flag("--port", default=0, show_default="a free one", type=click.IntRange(0, 65535), help="on 127.0.0.1")
@flag("--open/--no-open", "open_browser", default=True, help="open the page in a browser")
def studio(folders: tuple[str, ...], runs: tuple[str, ...], **given: Any) -> None:
    """Open a local page: compare, search, transport, sample, watch runs.

    Folders and indexes that are named can be searched there; samples are always there. The page is served to this
    machine only, at an address with a token in it, which is printed on one line. Ctrl-C ends it.

    \b
    likewise studio photos/
    """
    from likewise.studio import serve

    serve(folders, runs=[Path(run) for run in runs], **given)
