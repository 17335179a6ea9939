"""`likewise pixels compare`: two photos aligned, in a line, a picture, and the files that are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.pixels_model import model_at, with_model, working
from likewise.cli.terminal import DRAWN, labels_of, remark, result, target
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.pixels.compare import PixelComparison

PHOTO = (".png", ".jpg", ".webp", ".tif")
FLOWS = (".flo", ".png")


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@with_model
@click.option(
    "--out", default="alignment.png", show_default=True, type=click.Path(), help="where to draw what was done"
)
@click.option("--flow", type=click.Path(), help="write the flow a→b: f.flo (Middlebury) or f.png (KITTI)")
@click.option("--warp", type=click.Path(), help="write b brought onto a (.png, .jpg, .webp, .tif)")
@click.option("--wheel", type=click.Path(), help="write the flow in the colours of Middlebury's wheel")
@click.option("--confidence", type=click.Path(), help="write the confidence of each pixel, black 0 to white 1")
@click.option(
    "--detail", type=click.IntRange(0), help="correct large photos tile by tile, up to this longest side in pixels"
)
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
def compare(
    a: str,
    b: str,
    model: str | None,
    out: str,
    flow: str | None,
    warp: str | None,
    wheel: str | None,
    confidence: str | None,
    detail: int | None,
    as_json: bool,
) -> None:
    """Align two photos of one place, by day and by night, from other spots: where did every pixel of A go in B?

    Says the round-trip error (how far pixels miss their place after going to B and back, in the median), the share of
    pixels that return, and what was done. Draws A, B, B warped to A, a checkerboard, the flow and its confidence.
    """
    from likewise.pixels.compare import compare as compared

    files = {
        "picture": target(out, "out", DRAWN),
        "flow": target(flow, "flow", FLOWS),
        "warp": target(warp, "warp", PHOTO),
        "wheel": target(wheel, "wheel", PHOTO),
        "confidence": target(confidence, "confidence", PHOTO),
    }
    with working("aligning"):
        found = compared(a, b, model=detailed(model_at(model), detail))
        write(found, files)
    written = {name: str(path) for name, path in files.items() if path is not None}
    result(words(found), found.to_dict() | {"files": written}, as_json)
    remark(f"see {', '.join(written.values())}")


def detailed(network: Any, detail: int | None) -> Any:
    """The aligner with another `detail`; the network as it is where none is asked for."""
    from dataclasses import replace

    if detail is None:
        return network
    from likewise.pixels.aligner import Aligner

    if not isinstance(network, Aligner):
        raise InputError(f"detail: only for likewise's own aligners, got a {type(network).__name__}")
    return Aligner(network.network, replace(network.options, detail=detail), name=network.name)


def words(found: PixelComparison) -> str:
    """The one line."""
    one, two = labels_of(*found.names)
    done = ", ".join(dict.fromkeys(found.steps)) or "one pass"
    share = f"{found.cycle_consistency:.0%} of {one} returns from {two}"
    return f"round-trip error {found.distance:.2f} px; {share} ({done}; {found.model})"


def write(found: PixelComparison, files: Mapping[str, Path | None]) -> None:
    """The files that were asked for."""
    from likewise import plot
    from likewise.media import write_image
    from likewise.types import write_flow

    if (path := files.get("picture")) is not None:
        found.plot(path)
    if (path := files.get("flow")) is not None:
        write_flow(path, found.flow)
    if (path := files.get("warp")) is not None:
        write_image(path, found.warp())
    if (path := files.get("wheel")) is not None:
        write_image(path, plot.wheel(found.flow))
    if (path := files.get("confidence")) is not None:
        write_image(path, found.confidence)
