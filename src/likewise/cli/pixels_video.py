"""`likewise pixels video`: the flow of each frame of a video to the next, in files, colours and a film."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.pixels_model import model_at, with_model, working
from likewise.cli.terminal import check_writable, remark, result, target
from likewise.errors import InputError, LikewiseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

FILM = (".mp4", ".gif")
RATE = 12
"""Frames a second of a film."""


@click.command()
@click.argument("file", type=click.Path())
@with_model
@click.option("--every", default=1, show_default=True, type=click.IntRange(1), help="take each so-manieth frame")
@click.option("--most", type=click.IntRange(2), help="frames that are taken, at most; by default all")
@click.option("--size", type=click.IntRange(64), help="make frames smaller first: longest side in pixels")
@click.option(
    "--format", "form", default="flo", show_default=True, type=click.Choice(["flo", "png"]), help="Middlebury or KITTI"
)
@click.option("--largest", type=float, help="pixels of motion in full colour; by default what suits the whole video")
@click.option("--film", type=click.Path(), help="write frames and colours side by side: film.mp4 or film.gif")
@click.option("--out", default="flow", show_default=True, type=click.Path(), help="the folder to write to")
@click.option("--json", "as_json", is_flag=True, help="print what was done as JSON")
def video(
    file: str,
    model: str | None,
    every: int,
    most: int | None,
    size: int | None,
    form: str,
    largest: float | None,
    film: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Where does every pixel of a frame go in the next one? A flow file a frame, and its colours.

    Writes OUT/flow/000000.flo … and OUT/wheel/000000.png …, all in the colours of one scale. Finished frames are kept:
    the same command goes on after a stop. No turns of a frame are tried, as they are between two photos.
    """
    from likewise.store.run import Run

    folder, shown = Path(out), target(film, "film", FILM)
    if largest is not None and not (math.isfinite(largest) and largest > 0):
        raise InputError(f"largest: expected a length in pixels > 0, got {largest:g}")
    check_writable(folder)
    network = unsearched(model_at(model))
    name = str(getattr(network, "name", type(network).__name__))
    Run.create(folder, _asked(file, name, model, every, size, form), resume=True)
    with working("decoding") as say:
        flows, fresh = _flows(network, _frames(file, every, most, size), folder / "flow", form, say)
        scale = _scale(flows) if largest is None else largest
        say("colours")
        wheels = _wheels(flows, folder / "wheel", scale)
        if shown is not None:
            say("film")
            write_film(shown, _side_by_side(_frames(file, every, most, size), wheels))
    record = {"flows": len(flows), "computed": fresh, "model": name, "largest": scale, "out": str(folder), "film": film}
    kept = f", {len(flows) - fresh} as they were" if fresh < len(flows) else ""
    result(f"{len(flows)} flows of {Path(file).name}{kept}; full colour is {scale:.3g} px; {folder}", record, as_json)
    remark(f"see {shown or folder / 'wheel'}")


def _asked(file: str, name: str, model: str | None, every: int, size: int | None, form: str) -> dict[str, Any]:
    """What a flow depends on; a folder is gone on with only under the same."""
    return {"file": str(Path(file).absolute()), "model": name if model is None else str(Path(model).absolute()),
            "every": every, "size": size, "format": form}  # fmt: skip


def unsearched(network: Any) -> Any:
    """An aligner that tries no turns of the second picture: consecutive frames lie alike. Others as they are."""
    from dataclasses import replace

    from likewise.pixels.aligner import Aligner

    if not isinstance(network, Aligner):
        return network
    return Aligner(network.network, replace(network.options, search="never"), name=network.name)


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _frames(file: str, every: int, most: int | None, size: int | None) -> Iterator[Picture]:
    """The frames that are taken, smaller where that is asked for."""
    import cv2
    import numpy as np

    from likewise.media import frames

    for frame in frames(file, every=every, most=most):
        share = 1.0 if size is None else size / max(frame.shape[:2])
        if share >= 1:
            yield frame
            continue
        small = (max(1, round(frame.shape[1] * share)), max(1, round(frame.shape[0] * share)))
        yield np.asarray(cv2.resize(frame, small, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _flows(network: Any, frames: Iterable[Picture], folder: Path, form: str, say: Any) -> tuple[list[Path], int]:
    """A flow file a pair of consecutive frames, and how many of them were not there before."""
    from likewise.types import write_flow

    files, fresh = [], 0
    for number, (a, b) in enumerate(itertools.pairwise(frames)):
        file = folder / f"{number:06d}.{form}"
        if not file.exists():
            say(f"frame {number}")
            write_flow(file, _flow(network, a, b, number).numpy())
            fresh += 1
        files.append(file)
    if not files:
        raise InputError("file: expected two frames at least; take fewer apart (--every)")
    return files, fresh


def _flow(network: Any, a: Picture, b: Picture, number: int) -> Any:
    import torch

    one, two = (torch.from_numpy(x).permute(2, 0, 1).float() / 255 for x in (a, b))
    try:
        with torch.inference_mode():
            return network.flow(one, two)
    except LikewiseError as error:
        raise type(error)(f"frame {number}: {error}") from error


# ── colours ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _scale(flows: list[Path]) -> float:
    """The largest of the frames' own scales, each the 99th percentile of its lengths."""
    from likewise.plot.flows import longest
    from likewise.types import read_flow

    return max(longest(read_flow(f)) for f in flows)


def _wheels(flows: list[Path], folder: Path, scale: float) -> list[Path]:
    from likewise import plot
    from likewise.media import write_image
    from likewise.types import read_flow

    return [write_image(folder / f"{f.stem}.png", plot.wheel(read_flow(f), largest=scale)) for f in flows]


# ── film ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _side_by_side(frames: Iterable[Picture], wheels: list[Path]) -> Iterator[Picture]:
    """Each frame with the colours of its flow at its right; sides are even, as films need them."""
    import numpy as np

    from likewise.media import read_array

    for frame, wheel in zip(frames, wheels, strict=False):
        both = np.hstack([frame, read_array(wheel)])
        yield both[: both.shape[0] // 2 * 2, : both.shape[1] // 2 * 2]


def write_film(path: Path, frames: Iterable[Picture], rate: int = RATE) -> None:
    """Pictures (h, w, 3) of one size as a film: .mp4 by PyAV, .gif by Pillow."""
    from likewise.media import atomic

    with atomic(path) as sibling:
        (_gif if path.suffix.lower() == ".gif" else _mp4)(sibling, frames, rate)


def _gif(path: Path, frames: Iterable[Picture], rate: int) -> None:
    from PIL import Image

    first, *rest = [Image.fromarray(f).quantize(128) for f in frames]
    first.save(path, "GIF", save_all=True, append_images=rest, duration=round(1000 / rate), loop=0)


def _mp4(path: Path, frames: Iterable[Picture], rate: int) -> None:
    import av

    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(rate))
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
