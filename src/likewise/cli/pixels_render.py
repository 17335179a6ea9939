"""`likewise pixels render`: pairs of pictures of made-up places, with everything that is true of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.terminal import check_writable, remark, result
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.pixels.rendering import Pair, Renderer

SHOWN = 12
"""Pairs on the contact sheet, at most."""


@click.command()
@click.option("--out", default="rendered", show_default=True, type=click.Path(), help="the folder to write to")
@click.option("--pairs", default=8, show_default=True, type=click.IntRange(1, 100_000), help="how many")
@click.option("--size", default="240x320", show_default=True, help="height × width in pixels")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="of the first pair; the next has one more"
)
@click.option("--textures", type=click.Path(), help="a folder of photos to paint with; by default made-up patterns")
@click.option("--motion", default=1.0, show_default=True, help="how far the camera moves, turns and zooms, 0.01 to 4")
@click.option("--lighting", default=1.0, show_default=True, help="0: one light for both, 1: two that are drawn apart")
@click.option("--sensor", default=1.0, show_default=True, help="strength of noise, blur and vignette, 0 to 4")
@click.option("--json", "as_json", is_flag=True, help="print what was written as JSON")
def render(
    out: str,
    pairs: int,
    size: str,
    seed: int,
    textures: str | None,
    motion: float,
    lighting: float,
    sensor: float,
    as_json: bool,
) -> None:
    """Render pairs of pictures of random places under two lights, with exact flow, occlusion and cameras.

    Each pair is a folder: a.png, b.png, flow.flo (a→b), occluded.png (white where something stands before the pixel in
    b) and F.json (F, and the cameras Ka, Kb, R, t). sheet.png shows the first of them: a, b, flow, occlusion. Pairs
    that are there are kept.
    """
    from likewise.pixels.rendering import Renderer
    from likewise.pixels.rendering import textures as sources
    from likewise.store.run import Run, progress

    folder = Path(out)
    check_writable(folder)
    shape = _size(size)
    renderer = Renderer(
        None if textures is None else sources.folder(textures), shape, motion=motion, lighting=lighting, sensor=sensor
    )
    asked = {"size": list(shape), "motion": motion, "lighting": lighting, "sensor": sensor}
    Run.create(folder, {**asked, "textures": list(renderer.textures.names), "seed": seed}, seed=seed, resume=True)
    with progress(pairs, "rendering") as advance:
        places = [folder / f"{i:05d}" for i in range(pairs)]
        for i, place in enumerate(places):
            _kept(renderer, seed + i, place)
            advance()
    sheet = _sheet(places[:SHOWN], folder / "sheet.png")
    words = f"{pairs} pairs of {shape[0]} × {shape[1]} px in {folder}"
    result(words, asked | {"pairs": pairs, "seed": seed, "out": str(folder), "sheet": str(sheet)}, as_json)
    remark(f"see {sheet}")


def _size(words: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", words)
    if found is None:
        raise InputError(f"size: expected height x width in pixels, such as 240x320, got {words!r}")
    return int(found[1]), int(found[2])


def _kept(renderer: Renderer, seed: int, place: Path) -> None:
    """Render a pair into its folder unless it is there; F.json is written last and says that all is."""
    if not (place / "F.json").exists():
        write(renderer.pair(seed), place, seed)


def write(pair: Pair, place: Path, seed: int) -> None:
    """The files of a pair."""
    from likewise.cli.terminal import write_json
    from likewise.media import write_image
    from likewise.types import write_flow

    for name in ("a", "b"):
        write_image(place / f"{name}.png", getattr(pair, name).permute(1, 2, 0).clamp(0, 1).numpy())
    write_flow(place / "flow.flo", pair.flow.numpy())
    write_image(place / "occluded.png", pair.occluded.numpy().astype("uint8") * 255)
    cameras: dict[str, Any] = {name: getattr(pair, name).tolist() for name in ("F", "Ka", "Kb", "R", "t")}
    write_json(place / "F.json", {"seed": seed, **cameras})


def _sheet(places: list[Path], path: Path, gap: int = 6) -> Path:
    """A row a pair: a, b, the flow a→b in colours, what b does not show."""
    import numpy as np

    from likewise import plot
    from likewise.media import read_array, write_image
    from likewise.types import read_flow

    rows = []
    for p in places:
        shown = [read_array(p / "a.png"), read_array(p / "b.png"), plot.wheel(read_flow(p / "flow.flo"))]
        frame = ((gap, 0), (gap, 0), (0, 0))
        rows.append(
            np.hstack([np.pad(x, frame, constant_values=255) for x in (*shown, read_array(p / "occluded.png"))])
        )
    whole = np.pad(np.vstack(rows), ((0, gap), (0, gap), (0, 0)), constant_values=255)
    return write_image(path, whole)
