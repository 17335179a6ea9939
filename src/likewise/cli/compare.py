"""The commands that pick their level: `likewise compare`, `index`, `search` and `studio`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import count, flag, json_flag, model_flags, out_flag, workers_flags
from likewise.errors import FileError, InputError

if TYPE_CHECKING:
    from likewise.compare import AutoComparison
    from likewise.inputs import Input
    from likewise.search import Collection, Result

LEVELS = ("auto", "pixels", "images", "sets", "distributions")
PLACE = "likewise-index"
EXPORTS = (".csv", ".colmap", ".fiftyone")
PIXELS, SETS, DISTRIBUTIONS = "Two photos (pixels, images)", "Albums and videos (sets)", "Collections (distributions)"


@click.command(cls=Command)
@click.argument("a")
@click.argument("b")
@flag("--level", default="auto", type=click.Choice(LEVELS), help="compare at this level")
@count("--seed", least=0, help="seed of k-means, or of what is drawn of a generator")
@out_flag("compare", "folder for figures and JSON")
@json_flag
@model_flags("the network that aligns or embeds: a run or a file; by default the one that ships")
@flag(
    "--flow", is_flag=True, show_default=False, group=PIXELS, help="write flow.flo, wheel.png and confidence.png, too"
)
@count("--every", group=SETS, help="take each n-th frame of a video; by default every one")
@flag("--gamma", type=click.FloatRange(0, min_open=True), group=SETS, help="smoothing of the plan")
@flag("--value", type=click.Choice(["kl", "paper", "divergence", "sharp"]), group=SETS, help="the plan's number")
@flag("--metric", type=click.Path(), group=SETS, help="a learned metric (a file of `likewise sets fit`)")
@flag("--metric-level", group=SETS, help="with --metric: under the metric of this level")
@flag("--reference", group=SETS, help="an index: how unusual is the distance among its albums?")
@count("--k", group=DISTRIBUTIONS, help="neighbour that sets a ball's radius (3); of sets: most points (8)")
@count("--n", least=2, group=DISTRIBUTIONS, help="images drawn of a generator; by default as many as the other has")
@flag("--rho", type=float, group=DISTRIBUTIONS, help="polarity with which a bank is drawn; below 0 modes")
@flag("--generator", group=DISTRIBUTIONS, help="the generator that a bank came from, where it is not a shipped one")
@flag(
    "--features",
    group=DISTRIBUTIONS,
    help="module:attribute of what embeds images; of sets also pixels, lbp; of photos what is matched",
)
def compare(a: str, b: str, level: str, device: str, out: str, as_json: bool, **given: Any) -> None:
    """Compare A and B: the level is chosen from what they are, and said with the reason.

    \b
    two photos            pixels: flow, warp, inliers; do both show the same?
    albums, videos        sets: the transport plan (folders of up to 200 images)
    larger, or generator  distributions: Fréchet, precision, recall, what is uncovered

    A generator is a name (fashion), mine.py:generator, a file of weights, or a bank. Writes compare.png and
    compare.json; for photos also matches.png and warp.png.

    \b
    likewise compare day.jpg night.jpg
    likewise compare monday/ friday/ --json
    likewise compare photos/ fashion
    likewise compare day.jpg night.jpg --level images
    """
    from likewise.compare import check, choose, compare_at
    from likewise.distributions.data import load_object
    from likewise.inputs import classify

    own = ("model", "flow", "metric", "metric_level", "features")
    model, flow, metric, metric_level, features = (given.pop(name) for name in own)
    one, two = classify(a, "A"), classify(b, "B")
    chosen, why = choose(one, two) if level == "auto" else (level, "--level says so")
    options = {name: value for name, value in given.items() if value is not None}
    options |= _models(chosen, model, device)
    if features is not None:
        options["features"] = load_object(features) if ":" in features else features
    check(one, two, chosen, options)
    for name, value, level_of in (("flow", flow, "pixels"), ("metric", metric, "sets")):
        if value and chosen != level_of:
            raise InputError(f"{name}: not an option of the level {chosen}; it is one of {level_of}")
    if chosen in ("sets", "distributions"):  # an image that cannot be read is named and left out
        options["on_error"] = "skip"
    folder = terminal.check_writable(Path(out))
    terminal.remark(f"{chosen}, because {why}")
    with terminal.working("comparing"):
        if metric is None and metric_level is None:
            comparison = compare_at(one, two, chosen, why, options)
        else:
            comparison = _under_metric(one, two, why, (metric, metric_level), options)
        files = _write(comparison, folder, terminal.labels_of(a, b), flow)
    terminal.tell_left_out(comparison.skipped)
    record = {**comparison.to_dict(), "a": a, "b": b, "files": [str(f) for f in files]}
    terminal.write_json(folder / "compare.json", record)
    terminal.result(_words(comparison, *terminal.labels_of(a, b)), record, as_json)
    terminal.remark(f"see {', '.join(str(f) for f in files)}")


def _models(level: str, model: str | None, device: str) -> dict[str, Any]:
    """The network of the level where one is named or moved."""
    if level == "images" and (model is not None or device != "cpu"):
        from likewise.cli.images import model_at as embedder_at

        return {"model": embedder_at(model, device)}
    if level != "pixels":
        return {} if model is None else {"model": model}
    if model is None and device == "cpu":
        return {}
    from likewise.cli.pixels import model_at

    return {"model": model_at(model, device)}


def _under_metric(
    a: Input, b: Input, why: str, metric: tuple[str | None, str | None], options: dict[str, Any]
) -> AutoComparison:
    """Two sets under a learned metric, read as the sets that it was learned from."""
    from likewise.cli.sets import metric_at, reading
    from likewise.compare import AutoComparison
    from likewise.sets.data import describe
    from likewise.sets.scale import Scale

    model, level = metric_at(*metric)
    how = reading({"seed": 0, **options}, model)
    skipped: list[tuple[str, str]] = []
    p, q = (describe(x.item, where=x.where, on_error="skip", skipped=skipped, **how) for x in (a, b))
    own = model.compare(p, q, level=level, gamma=options.get("gamma", "auto"), value=options.get("value"))
    scale = Scale(reason="only the default features have a scale, without a metric")
    return AutoComparison(own.distance, "sets", why, own, skipped=tuple(skipped), scale=scale)


def _words(comparison: AutoComparison, one: str, two: str) -> str:
    """The one line: the level, why, and what came of it."""
    own: Any = comparison.own
    if comparison.level == "pixels":
        words = _photos(comparison, own, one, two)
    elif comparison.level == "images":
        words = f"distance {own.distance:.3f} of {one} and {two} (0 the same, 2 the most)"
    elif comparison.level == "sets":
        m, n = own.plan.shape
        how = "" if own.converged else f", not converged (marginal error {own.residual:.1e})"
        words = f"distance {own.distance:.4g} of {one} and {two}, plan {m}×{n}{how}"
    else:
        shares = f"precision {own.precision:.3f}, recall {own.recall:.3f}"
        left = f"{len(own.uncovered)} of the {len(own.real)} of {one} are uncovered by the {len(own.fake)} of {two}"
        words = f"Fréchet distance {float(own.distance):.4g}, {shares}; {left}"
    said = f"; {comparison.scale}" if comparison.scale else ""
    return f"{comparison.level}, because {comparison.why}: {words}{said}"


def _photos(comparison: AutoComparison, own: Any, one: str, two: str) -> str:
    pair: Any = comparison.pair
    aligned = f"round-trip error {own.distance:.2f} px, {own.aligned:.0%} of {one} is aligned with {two}"
    aligned = f"no alignment: {own.reason}" if own.reason else aligned
    said = [f"{pair.verdict} ({pair.percent})", pair.evidence.words(), pair.evidence.relation, aligned]
    near = "" if comparison.beside is None else f"image distance {comparison.beside.distance:.3f}"
    return "; ".join(filter(None, (*said, near)))


def _write(comparison: AutoComparison, folder: Path, labels: tuple[str, str], flow: bool) -> list[Path]:
    """The level's own figure, and for two photos the inliers, the warp and the flow."""
    from likewise import plot
    from likewise.media import write_image
    from likewise.sets.data import thumbnails
    from likewise.types import write_flow

    own: Any = comparison.own
    files = [folder / "compare.png"]
    options: dict[str, Any] = {"labels": labels} if comparison.level in ("sets", "distributions") else {}
    if comparison.level == "sets":
        options["thumbnails"] = (thumbnails(own.p), thumbnails(own.q))
    comparison.plot(files[0], **options)
    if comparison.level == "pixels":
        files.append(write_image(folder / "warp.png", own.warp()))
        evidence = None if comparison.pair is None else comparison.pair.evidence
        if evidence is not None and len(evidence.matches):
            evidence.plot(folder / "matches.png")
            files.append(folder / "matches.png")
    if flow:
        write_flow(folder / "flow.flo", own.flow)
        files += [
            folder / "flow.flo",
            write_image(folder / "wheel.png", plot.wheel(own.flow)),
            write_image(folder / "confidence.png", own.confidence),
        ]
    return files


# ── index and search ──────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("folder", type=click.Path())
@flag("--out", default=PLACE, help="the index: a folder, or milvus://host:port/collection")
@model_flags("embed with this model (a file of `likewise images train`)")
@flag("--kind", type=click.Choice(["auto", "flat", "ivf"]), help="exact (flat), or an index of FAISS")
@flag(
    "--watch", is_flag=True, show_default=False, help="go on: update whenever photos come, change or go (Ctrl-C ends)"
)
@flag("--check", is_flag=True, show_default=False, help="read the whole index afterwards, and say what is wrong")
@workers_flags
@json_flag
def index(folder: str, out: str, model: str | None, device: str, kind: str | None, **given: Any) -> None:
    """Make the photos below FOLDER searchable; run again to update.

    New photos are added, changed ones embedded again, deleted ones removed. It can be stopped at any moment, and
    resumes where it was.

    \b
    likewise index photos/
    likewise index photos/ --executor tcp://head:8786
    """
    from likewise.search import Collection

    check, as_json, watch = (given.pop(name) for name in ("check", "as_json", "watch"))
    with Collection.build(folder, out, model=_model(model, device), kind=kind, progress=True, **given) as collection:
        done = collection.report
        skipped = terminal.tell_left_out([(s.name, s.reason) for s in done.skipped])
        wrong = collection.check() if check else []
        record = {**collection.describe(), "out": out, "added": done.added, "updated": done.updated}
        record |= {"unchanged": done.unchanged, "removed": done.removed, "skipped": skipped}
        root = collection.root
        if Path(folder).resolve() != Path(root).resolve():
            terminal.warn(f"{collection.place} is the index of {root}; the photos of {folder} were updated in it")
        sound = ["every byte was read: nothing is wrong"] if check and not wrong else []
        terminal.result([f"{len(collection):,} photos in {out}: {done}", *sound], record, as_json)
        with contextlib.suppress(KeyboardInterrupt):
            for report in collection.watch() if watch else ():
                click.echo(str(report))
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
@model_flags("the model that made the index, where it does not hold it itself")
@count("-k", default=10, help="how many to find")
@count("--shortlist", default=100, help="candidates that are re-ranked")
@count("--verify", least=0, default=10, help="how many of the best are verified")
@flag("--under", help="only photos below this folder")
@flag("--label", help="only photos that lie in a subfolder of this name")
@flag("--others", is_flag=True, show_default=False, help="leave out QUERY itself, where it is a photo of the index")
@flag("--each", is_flag=True, show_default=False, help="search for every QUERY by itself, not one thing seen in all")
@flag("--duplicates", is_flag=True, show_default=False, help="no query: group the photos that are copies")
@flag("--out", type=click.Path(), help="a page (.html), a figure (.png …), or for programs (.csv, .colmap, .fiftyone)")
@json_flag
def search(query: tuple[str, ...], place: str, out: str | None, as_json: bool, **given: Any) -> None:
    """Find the photos that show what QUERY shows: a photo, several of the same thing, a folder of such, or a video.

    Candidates are found by embedding and VLAD, ordered by the features that they have alike, and the best are verified
    by the inliers of one geometry. Every hit says how probable it is to show the same, and why.

    \b
    likewise search query.jpg --out found.html
    likewise search --duplicates
    """
    from likewise.search import Collection, export
    from likewise.search.result import write_page

    own = ("model", "device", "others", "each", "duplicates")
    model, device, others, each, duplicates = (given.pop(name) for name in own)
    if bool(query) == duplicates:
        expected = "--duplicates takes none" if query else "expected a photo or a video to search for"
        raise InputError(f"query: {expected}")
    if duplicates and out is not None and not out.endswith(EXPORTS):
        raise InputError(f"out: --duplicates draws nothing; a name that ends in {', '.join(EXPORTS)} gets its groups")
    file = None if out is None else terminal.target(out, "out", (".html", ".png", ".svg", ".pdf", ".jpg", *EXPORTS))
    if file is not None and file.suffix.lower() not in (".html", *EXPORTS) and each and len(query) > 1:
        raise InputError("out: a figure shows one query; write a page (.html) for several")
    if not Collection.exists(place):
        raise FileError(f"{place}: no index here; make one with `likewise index FOLDER`, or name it with --index")
    with Collection.open(place, _model(model, device)) as collection:
        root = collection.root
        if duplicates:
            _duplicates(collection, root, file, as_json)
            return
        options = {**given, "leave_out": query if others else ()}
        asked: list[Any] = list(query) if each else [query[0] if len(query) == 1 else list(query)]
        results = [collection.search(q, **options) for q in asked]
    if file is not None and file.suffix in EXPORTS:
        export(results, file)
    elif file is not None:
        write_page(results, file) if file.suffix.lower() == ".html" else results[0].plot(file)
    if file is not None:
        terminal.remark(f"see {out}")
    records = [one.to_dict() for one in results]
    lines = [line for one in results for line in _table(one, root)]
    terminal.result(lines, records[0] if len(results) == 1 else {"queries": records}, as_json)


def _table(found: Result, root: Path) -> list[str]:
    """Rank, verdict, distances and path below the root of every hit."""
    lines = [", ".join(map(terminal.quote, found.query.names[:3])) + (" …" if len(found.query) > 3 else "")]
    rows = [("rank", "verdict", "", "distance", "alike", "inliers", "photo")]
    for hit in found.hits:
        seen = "not verified" if hit.evidence is None else f"{hit.evidence.n} of {len(hit.evidence.matches)}"
        numbers = (hit.percent, f"{hit.distance:.4f}", str(hit.alike), seen)
        rows.append((f"{hit.rank:>4}", hit.verdict, *numbers, _below(hit.path, root)))
    table = zip(terminal.columns([row[:-1] for row in rows]), rows, strict=True)
    lines += (
        [f"{line}  {row[-1]}" for line, row in table]
        if found.hits
        else ["nothing found: the index holds no photo that takes part"]
    )
    return [*lines, *(f"      {note}" for note in found.notes)]


def _below(path: str, root: Path) -> str:
    return terminal.quote(Path(path).relative_to(root) if Path(path).is_relative_to(root) else path)


def _duplicates(collection: Collection, root: Path, file: Path | None, as_json: bool) -> None:
    groups = collection.duplicates(progress=True)
    if file is not None:
        from likewise.search import export

        export(groups, file)
    lines = [f"{len(groups)} groups of copies among {len(collection)} photos"]
    for i, group in enumerate(groups, 1):
        lines.append(f"group {i}")
        rows = [(f"  {_below(copy.path, root)}", copy.what, copy.why) for copy in group.copies]
        lines += [line.rstrip() for line in terminal.columns(rows)]
    record = {"index": collection.place, "photos": len(collection), "groups": [group.to_dict() for group in groups]}
    terminal.result(lines, record, as_json)


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
