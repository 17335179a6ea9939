"""`likewise pixels sfm`: from a folder of photos to undistorted pairs with fundamental matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from likewise.cli.pixels_model import working
from likewise.cli.terminal import check_writable, remark, result


@click.command()
@click.argument("photos", type=click.Path())
@click.option("--out", default="sfm", show_default=True, type=click.Path(), help="the folder to write to")
@click.option("--size", default=1000, show_default=True, type=click.IntRange(64), help="longest side of photos, px")
@click.option(
    "--matcher",
    default="exhaustive",
    show_default=True,
    type=click.Choice(["exhaustive", "sequential"]),
    help="every two photos, or neighbours: for the frames of a walk",
)
@click.option(
    "--camera",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "single", "each"]),
    help="who shares intrinsics: photos of one make, focal length and size; all; nobody",
)
@click.option("--features", default=4096, show_default=True, type=click.IntRange(64), help="features a photo, at most")
@click.option(
    "--overlap", default=30, show_default=True, type=click.IntRange(8), help="points that a pair has in common"
)
@click.option(
    "--threads", default=-1, show_default=True, help="threads of COLMAP; -1: all; 1: the same again by the seed"
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of every draw")
@click.option("--json", "as_json", is_flag=True, help="print the summary as JSON")
def sfm(
    photos: str,
    out: str,
    size: int,
    matcher: Literal["exhaustive", "sequential"],
    camera: Literal["auto", "single", "each"],
    features: int,
    overlap: int,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Reconstruct a place from a folder of PHOTOS (COLMAP through pycolmap), and keep pairs with their F.

    This is LIFE's own supervision: likewise pixels train PHOTOS --scenes OUT learns from it. Writes OUT/images, model
    (COLMAP's files), pairs.npz and summary.json. Finished steps are kept: the same command goes on after a stop.
    """
    from likewise.pixels.sfm import reconstruct
    from likewise.store.run import read_json

    folder = Path(out)
    check_writable(folder)
    with working("reconstructing"):
        pairs = reconstruct(
            photos,
            folder,
            size=size,
            matcher=matcher,
            camera=camera,
            features=features,
            overlap=overlap,
            seed=seed,
            threads=threads,
            report=remark,
        )
    summary = read_json(folder / "summary.json")
    result("\n".join(_lines(summary, len(pairs), folder)), summary | {"out": str(folder)}, as_json)


def _lines(summary: dict[str, Any], pairs: int, folder: Path) -> list[str]:
    """What stands now, what could not be placed, and how long a unit is where GPS tells."""
    lines = [
        f"{summary['registered']} of {summary['photos']} photos placed, {summary['points']:,} points, reprojection "
        f"error {summary['reprojection error']:.2f} px",
        f"{pairs} pairs, epipolar error {summary['epipolar error']:.2f} px in the median; {folder}",
    ]
    left = [Path(name).name for name in summary["left out"]]
    if left:
        lines.append(f"not placed: {', '.join(left[:8])}" + (f" and {len(left) - 8} more" if len(left) > 8 else ""))
    scale = summary["metres a unit"]
    if scale is not None:
        lines.append(f"by GPS, a unit is {scale['scale']:.2f} m; the two disagree by {scale['error']:.1f} m")
    return lines
