"""`likewise pixels localize`: where a photo was taken, in a map made of other photos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.pixels_match import FEATURES
from likewise.cli.pixels_model import model_at, with_model, working
from likewise.cli.terminal import check_writable, remark, result
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.pixels.localize import Located, Map


@click.command()
@click.argument("place", metavar="MAP", type=click.Path())
@click.argument("query", nargs=-1, type=click.Path())
@click.option("--build", type=click.Path(), help="make MAP of this folder of photos first, as likewise pixels sfm does")
@with_model
@click.option("--guided/--raw", default=True, show_default=True, help="matches with the flow, or without it")
@click.option("--retrieve", default=5, show_default=True, type=click.IntRange(1), help="photos of MAP that are matched")
@click.option(
    "--shortlist",
    default="features",
    show_default=True,
    type=click.Choice(["features", "embed"]),
    help="chosen by common features, or by the embedder of the level images",
)
@click.option("--features", default="sift", show_default=True, type=click.Choice(FEATURES), help="what is matched")
@click.option("--px", default=8.0, show_default=True, help="pixels up to which a match agrees with a pose")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of the search")
@click.option("--json", "as_json", is_flag=True, help="print the poses as JSON")
def localize(
    place: str,
    query: tuple[str, ...],
    build: str | None,
    model: str | None,
    guided: bool,
    retrieve: int,
    shortlist: str,
    features: str,
    px: float,
    seed: int,
    as_json: bool,
) -> None:
    """Place each QUERY photo in MAP, a folder that likewise pixels sfm or --build made: its pose, X_camera = R X + t.

    Centres are in the map's own units, and in metres where the photos' GPS gives the scale. A photo that cannot be
    placed says why.
    """
    if not query and build is None:
        raise InputError("query: expected a photo at least, or --build PHOTOS to make a map")
    survey = _map(place, build)
    remark(f"{survey}")
    options: dict[str, Any] = {"guided": guided, "retrieve": retrieve, "features": features, "px": px, "seed": seed}
    options |= {"model": model_at(model) if guided and query else None, "embedder": _describer(shortlist)}
    found = []
    with working("placing") as say:
        for name in query:
            say(name)
            found.append(survey.localize(name, **options))
    result("\n".join(_lines(survey, query, found)), _record(survey, query, found), as_json)


def _map(place: str, build: str | None) -> Map:
    from likewise.pixels.localize import Map

    if build is None:
        return Map.open(place)
    check_writable(Path(place))
    with working("building the map"):
        return Map.build(build, place, report=remark)


def _describer(shortlist: str) -> Any:
    if shortlist == "features":
        return None
    from likewise.images import default

    return default()


def _record(survey: Map, queries: Sequence[str], found: Sequence[Located]) -> dict[str, Any]:
    rows = [{"query": name, **at.to_dict()} for name, at in zip(queries, found, strict=True)]
    about = {"photos": len(survey), "points": len(survey.survey.points), "metres a unit": survey.metres}
    return {"map": str(survey.folder), **about, "queries": rows}


def _lines(survey: Map, queries: Sequence[str], found: Sequence[Located]) -> list[str]:
    if not queries:
        return [f"{survey} in {survey.folder}"]
    return [_line(name, at, survey.metres) for name, at in zip(queries, found, strict=True)]


def _line(name: str, at: Located, metres: float | None) -> str:
    if at.centre is None:
        return f"{name}: not placed: {at.reason}"
    x, y, z = at.centre
    scale = "" if metres is None else f" ({metres:.3g} m a unit)"
    return f"{name}: at ({x:.3f}, {y:.3f}, {z:.3f}){scale}; {at.n} of {len(at.points)} matches agree"
