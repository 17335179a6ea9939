"""`likewise compare A B`: two photos, albums, videos, folders or generators, at the level that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import count, device_flag, flag, json_flag, model_flag, out_flag
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.compare import AutoComparison
    from likewise.inputs import Input

LEVELS = ("auto", "pixels", "images", "sets", "distributions")
PIXELS, SETS, DISTRIBUTIONS = "Two photos (pixels, images)", "Albums and videos (sets)", "Collections (distributions)"


@click.command(cls=Command)
@click.argument("a")
@click.argument("b")
@flag("--level", default="auto", type=click.Choice(LEVELS), help="compare at this level")
@count("--seed", least=0, help="seed of k-means, or of what is drawn of a generator")
@device_flag
@out_flag("compare", "folder for figures and JSON")
@json_flag
@model_flag("the network that aligns or embeds: a run or a file; by default the one that ships")
@flag(
    "--flow", is_flag=True, show_default=False, group=PIXELS, help="write flow.flo, wheel.png and confidence.png, too"
)
@count("--every", group=SETS, help="take each n-th frame of a video; by default every one")
@flag("--gamma", type=click.FloatRange(0, min_open=True), group=SETS, help="smoothing of the plan")
@flag("--value", type=click.Choice(["kl", "paper", "divergence", "sharp"]), group=SETS, help="the plan's number")
@flag("--metric", type=click.Path(), group=SETS, help="a learned metric (a file of `likewise sets fit`)")
@flag("--metric-level", group=SETS, help="with --metric: under the metric of this level")
@count("--k", group=DISTRIBUTIONS, help="neighbour that sets a ball's radius (3); of sets: most points (8)")
@count("--n", least=2, group=DISTRIBUTIONS, help="images drawn of a generator; by default as many as the other has")
@flag("--rho", type=float, group=DISTRIBUTIONS, help="polarity with which a bank is drawn; below 0 modes")
@flag("--generator", group=DISTRIBUTIONS, help="the generator that a bank came from, where it is not a shipped one")
@flag("--family", group=DISTRIBUTIONS, help="the kind of network in a file of weights, where its keys do not tell")
@flag(
    "--features",
    group=DISTRIBUTIONS,
    help="module:attribute of what embeds images; of sets also pixels, lbp; of photos what is matched",
)
def compare(
    a: str,
    b: str,
    level: str,
    device: str,
    out: str,
    as_json: bool,
    model: str | None,
    flow: bool,
    metric: str | None,
    metric_level: str | None,
    features: str | None,
    **given: Any,
) -> None:
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

    model, level = metric_at(*metric)
    how = reading({"seed": 0, **options}, model)
    skipped: list[tuple[str, str]] = []
    p, q = (describe(x.item, where=x.where, on_error="skip", skipped=skipped, **how) for x in (a, b))
    own = model.compare(p, q, level=level, gamma=options.get("gamma", "auto"), value=options.get("value"))
    return AutoComparison(own.distance, "sets", why, own, skipped=tuple(skipped))


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
    return f"{comparison.level}, because {comparison.why}: {words}"


def _photos(comparison: AutoComparison, own: Any, one: str, two: str) -> str:
    matches: Any = comparison.matches
    inliers = f"{matches.geometry().n} of {len(matches)} matches are inliers" if matches else "no matches"
    near = "" if comparison.beside is None else f"; image distance {comparison.beside.distance:.3f}"
    verdict = "" if comparison.pair is None else f"{comparison.pair.verdict} ({comparison.pair.probability:.0%}); "
    consistent = f"{own.cycle_consistency:.0%} of {one} is round-trip consistent with {two}"
    return f"{verdict}round-trip error {own.distance:.2f} px, {consistent}, {inliers}{near}"


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
        matches: Any = comparison.matches
        if matches is not None and len(matches):
            inliers = matches.take(matches.geometry().inliers)
            title = f"{len(inliers)} of {len(matches)} matches are inliers of one geometry"
            drawn = plot.matches(own.images[0], own.images[1], inliers, title=title)
            files.append(plot.save(drawn, folder / "matches.png"))
    if flow:
        write_flow(folder / "flow.flo", own.flow)
        files += [
            folder / "flow.flo",
            write_image(folder / "wheel.png", plot.wheel(own.flow)),
            write_image(folder / "confidence.png", own.confidence),
        ]
    return files
