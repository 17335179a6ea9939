"""`likewise compare A B`: two photos, albums, videos, folders or generators, at the level that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.terminal import check_writable, labels_of, remark, result, tell_left_out, write_json

if TYPE_CHECKING:
    from likewise.compare import AutoComparison

LEVELS = ("auto", "pixels", "images", "sets", "distributions")


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--level", default="auto", show_default=True, type=click.Choice(LEVELS), help="compare at this level")
@click.option("--every", type=click.IntRange(1), help="sets: take each n-th frame of a video; by default every one")
@click.option("--k", type=click.IntRange(1), help="sets: most points of a set (8); distributions: neighbours (3)")
@click.option("--n", type=click.IntRange(2), help="distributions: pictures drawn of a generator")
@click.option("--rho", type=float, help="distributions: polarity with which a bank is drawn; below 0 modes")
@click.option("--generator", help="distributions: the generator that a bank came from, where it is not a shipped one")
@click.option("--family", help="distributions: the kind of network in a file of weights, where its keys do not tell")
@click.option("--seed", type=click.IntRange(0), help="seed of k-means, or of what is drawn of a generator")
@click.option("--out", default="compare", show_default=True, type=click.Path(), help="folder for pictures and JSON")
@click.option("--json", "as_json", is_flag=True, help="print compare.json")
def compare(a: str, b: str, level: str, out: str, as_json: bool, **given: Any) -> None:
    """Compare A and B: the level is chosen from what they are, and said with the reason.

    \b
    two photos            pixels: flow, warp, matches; do both show the same?
    albums, videos        sets: the transport plan (folders of up to 200 pictures)
    larger, or generator  distributions: Fréchet, precision, recall, what is left out

    A generator is a name (fashion), mine.py:generator, a file of weights, or a bank. Writes compare.png and
    compare.json; for photos also matches.png and warp.png. More options: `likewise LEVEL compare --help`.
    """
    from likewise.cli.pixels_model import working
    from likewise.compare import check, choose, compare_at
    from likewise.inputs import classify

    one, two, folder = classify(a, "A"), classify(b, "B"), Path(out)
    chosen, why = choose(one, two) if level == "auto" else (level, "--level says so")
    options = {name: value for name, value in given.items() if value is not None}
    check(one, two, chosen, options)
    check_writable(folder)
    remark(f"{chosen}, because {why}")
    with working("comparing"):
        found = compare_at(one, two, chosen, why, {**options, **_quietly(chosen)})
        files = _written(found, folder, labels_of(a, b))
    tell_left_out(found.skipped)
    record = {**found.to_dict(), "a": a, "b": b, "files": [str(f) for f in files]}
    write_json(folder / "compare.json", record)
    result(words(found, labels_of(a, b)), record, as_json)
    remark(f"see {', '.join(str(f) for f in files)}")


def _quietly(level: str) -> dict[str, str]:
    """On the command line a picture that cannot be read is named and left out."""
    return {"on_error": "skip"} if level in ("sets", "distributions") else {}


def words(found: AutoComparison, labels: tuple[str, str]) -> str:
    """The one line: the level, why, and what it found."""
    own, (one, two) = found.own, labels
    said = {"pixels": _pixels, "images": _images, "sets": _sets, "distributions": _distributions}[found.level]
    return f"{found.level}, because {found.why}: {said(found, own, one, two)}"


def _pixels(found: AutoComparison, own: Any, one: str, two: str) -> str:
    home = f"{own.cycle_consistency:.0%} of {one} returns from {two}"
    matches = found.matches or ()
    counts = f"{len(_agreed(matches))} of {len(matches)} matches agree on one geometry" if matches else "no matches"
    near = "" if found.beside is None else f"; image distance {found.beside.distance:.3f}"
    verdict = "" if found.pair is None else f"{found.pair.verdict} ({found.pair.probability:.0%}); "
    return f"{verdict}round-trip error {own.distance:.2f} px, {home}, {counts}{near}"


def _agreed(matches: Any) -> Any:
    """The matches that agree on one geometry."""
    return matches.take(matches.geometry().inliers)


def _images(found: AutoComparison, own: Any, one: str, two: str) -> str:
    return f"distance {own.distance:.3f} of {one} and {two} (0 the same, 2 the most)"


def _sets(found: AutoComparison, own: Any, one: str, two: str) -> str:
    m, n = own.plan.shape
    how = "" if own.converged else f", not converged (marginal error {own.residual:.1e})"
    return f"distance {own.distance:.4g} of {one} and {two}, plan {m}×{n}{how}"


def _distributions(found: AutoComparison, own: Any, one: str, two: str) -> str:
    shares = f"precision {own.precision:.3f}, recall {own.recall:.3f}"
    left = f"{len(own.uncovered)} of the {len(own.real)} of {one} are uncovered by the {len(own.fake)} of {two}"
    return f"Fréchet distance {float(own.distance):.4g}, {shares}; {left}"


def _written(found: AutoComparison, folder: Path, labels: tuple[str, str]) -> list[Path]:
    """The pictures: the level's own, and for two photos the matches and the second laid onto the first."""
    target = folder / "compare.png"
    if found.level == "pixels":
        return _photos(found, folder, target)
    if found.level == "sets":
        from likewise.sets.data import thumbnails

        own: Any = found.own
        found.plot(target, labels=labels, thumbnails=(thumbnails(own.p), thumbnails(own.q)))
    elif found.level == "distributions":
        found.plot(target, labels=labels)
    else:
        found.plot(target)
    return [target]


def _photos(found: AutoComparison, folder: Path, target: Path) -> list[Path]:
    from likewise import plot
    from likewise.media import write_image

    own: Any = found.own
    found.plot(target)
    files = [target, write_image(folder / "warp.png", own.warp())]
    if found.matches is not None and len(found.matches):
        agreed = _agreed(found.matches)
        title = f"{len(agreed)} of {len(found.matches)} features found again agree on one geometry"
        drawn = plot.matches(own.images[0], own.images[1], agreed, title=title)
        files.append(plot.save(drawn, folder / "matches.png"))
    return files
