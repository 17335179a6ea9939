"""`likewise pixels match`: features of two photos that belong together, and the geometry they agree on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from likewise.cli.pixels_model import model_at, with_model, working
from likewise.cli.terminal import DRAWN, remark, result, target

if TYPE_CHECKING:
    from likewise.pixels.matching import Matches
    from likewise.pixels.robust import Model

FEATURES = ("sift", "sift-l2", "orb", "akaze", "disk", "aliked", "xfeat", "keynet")
KINDS = ("either", "homography", "fundamental", "none")


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@with_model
@click.option(
    "--features",
    default="sift",
    show_default=True,
    type=click.Choice(FEATURES),
    help="what is matched; disk, aliked, xfeat and keynet need kornia",
)
@click.option(
    "--radius", default=5.0, show_default=True, help="pixels, at the flow's resolution, around where it points"
)
@click.option(
    "--search",
    default="all",
    show_default=True,
    type=click.Choice(["all", "left"]),
    help="stage 2 looks among all features of the other photo, or among those left over: more, less sure",
)
@click.option("--ratio", type=float, help="Lowe's test in stage 2, such as 0.8; by default none")
@click.option("--most", default=4096, show_default=True, type=click.IntRange(1), help="features a photo")
@click.option("--guided/--raw", default=True, show_default=True, help="with the flow, or mutual nearest features alone")
@click.option(
    "--model-kind",
    "kind",
    default="either",
    show_default=True,
    type=click.Choice(KINDS),
    help="what the matches should agree on: homography (plane, turn), fundamental (any place), or what more agree on",
)
@click.option("--out", default="matches.png", show_default=True, type=click.Path(), help="where to draw the matches")
@click.option("--save", type=click.Path(), help="write them: .npz (arrays) or .db (COLMAP)")
@click.option("--json", "as_json", is_flag=True, help="print counts and the matrix as JSON")
def match(
    a: str,
    b: str,
    model: str | None,
    features: str,
    radius: float,
    search: Literal["all", "left"],
    ratio: float | None,
    most: int,
    guided: bool,
    kind: str,
    out: str,
    save: str | None,
    as_json: bool,
) -> None:
    """Match the features of two photos: near where the flow points first, then what is left over [LIFE].

    The picture shows matches in the colour of their stage. A file for COLMAP goes by the photos' names.
    """
    from likewise.pixels.matching import match as matched
    from likewise.pixels.matching import raw

    picture, kept = target(out, "out", DRAWN), target(save, "save", (".npz", ".db"))
    with working("matching"):
        if guided:
            found = matched(
                a, b, features=features, model=model_at(model), radius=radius, search=search, ratio=ratio, most=most
            )
        else:
            found = raw(a, b, features=features, ratio=ratio, most=most)
        agreed = _agreed(found, kind)
        _draw(a, b, found, agreed, picture)
    if kept is not None:
        found.save(kept, names=(Path(a).name, Path(b).name))
    record = found.to_dict() | {"a": a, "b": b, "features": features, "model": _record(agreed), "picture": str(picture)}
    result("\n".join(_lines(found, agreed)), record | {"saved": save}, as_json)
    remark(f"see {picture}")


def _agreed(found: Matches, kind: str) -> Model | None:
    """The geometry that most matches agree on."""
    if kind == "none":
        return None
    if kind == "either":
        return found.geometry()
    return found.homography() if kind == "homography" else found.fundamental()


def _draw(a: str, b: str, found: Matches, agreed: Model | None, path: Path | None) -> None:
    from likewise import plot

    if path is not None:
        plot.save(plot.matches(a, b, found, title=_geometry(agreed)), path)


def _record(agreed: Model | None) -> dict[str, Any] | None:
    if agreed is None:
        return None
    matrix = None if agreed.matrix is None else agreed.matrix.tolist()
    return {"kind": agreed.kind, "matrix": matrix, "inliers": agreed.n, "reason": agreed.reason}


def _lines(found: Matches, agreed: Model | None) -> list[str]:
    counts = found.to_dict()
    if not len(found):
        return [f"no matches: {found.reason}"]
    first = f"{len(found)} matches: {counts['stage 1']} near the flow, {counts['stage 2']} elsewhere"
    told = _geometry(agreed)
    rows = [] if agreed is None or agreed.matrix is None else [_row(row) for row in agreed.matrix.tolist()]
    return [first, *([told] if told else []), *rows]


def _geometry(agreed: Model | None) -> str | None:
    """How many matches agree, in words."""
    if agreed is None:
        return None
    if agreed.matrix is None:
        return f"no {agreed.kind}: {agreed.reason}"
    article = {"homography": "a homography", "fundamental": "a fundamental matrix"}[agreed.kind]
    return f"{agreed.n} of {len(agreed.inliers)} matches agree on {article}"


def _row(numbers: list[float]) -> str:
    return "  " + "  ".join(f"{x: .6g}".rjust(13) for x in numbers)
