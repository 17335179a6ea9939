"""The network that ships with the level pixels: weights/pixels-aligner.safetensors.

    python tools/training_photos.py photos/
    python tools/train_aligner.py photos/ runs/ --ship

About an hour on one core; a training that was stopped goes on. --ship writes the package's weights.

Two trainings, one after the other. First the encoder alone, by contrast between cells of bent photos; then contrast,
BiT, SED on rendered places and the adaptive cycle together. The evaluation that chooses among weights looks at places
rendered with the training's own textures from other seeds; held-out textures and real pairs are not looked at.
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
from likewise.pixels.aligner import WEIGHTS, Aligner, AlignerOptions, align_once, resize_flows, working_image
from likewise.pixels.data import Photos
from likewise.pixels.rendering import Renderer
from likewise.pixels.training import Config, train

BENT: dict[str, Any] = {"bend": 1.2, "light": 1.0, "night": 0.25, "refine": 0, "keep": "last"}
WARM = Config(
    **BENT, warm=600, joint=0, height=144, width=192, small=0.75, schedule="constant", lr=1.6e-4, head_lr=8e-4,
    clip=1.0, warmup=30, evaluate_every=150,
)  # fmt: skip
JOINT = Config(
    **BENT, warm=0, joint=900, height=112, width=144, schedule="linear", lr=1.5e-4, head_lr=5e-4, refine_lr=1e-3,
    clip=20.0, warmup=20, ema=0.98, evaluate_every=100,
)  # fmt: skip
CHECKED, FIRST = 16, 7_000_000


def places(photos: Photos) -> Callable[[Any], Mapping[str, float]]:
    """End-point errors on rendered places: after three steps of the recurrence, at its start, after six."""
    renderer, options = Renderer(photos.pictures, (96, 128)), AlignerOptions()
    pairs = [renderer.pair(FIRST + i) for i in range(CHECKED)]

    def check(network: Any) -> Mapping[str, float]:
        found = {}
        for name, iters in (("scenes", 3), ("scenes_start", 0), ("scenes_6", 6)):
            errors = []
            for p in pairs:
                seen = align_once(network, working_image(p.a, options), working_image(p.b, options), iters)
                flow = resize_flows(seen, (96, 128), (96, 128)).ab
                errors.append(float(torch.linalg.vector_norm(flow - p.flow, dim=-1)[p.visible].mean()))
            found[name] = float(np.mean(errors))
        return found

    return check


@click.command()
@click.argument("photos", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--ship", is_flag=True, help="write the package's own weights")
def main(photos: Path, out: Path, ship: bool) -> None:
    """Train both stages, or go on with them."""
    torch.set_num_threads(1)
    pictures = Photos.folder(photos, shortest=400)
    warm, joint = out / "warm" / "model.safetensors", out / "joint" / "model.safetensors"
    if not warm.exists():
        train(pictures, WARM, scenes=None, out=warm.parent, resume=True)
    if not joint.exists():
        train(pictures, JOINT, out=joint.parent, resume=True, start=lw.load(warm), check=places(pictures))
    model: Aligner = lw.load(joint)
    click.echo(f"{joint}: {model.figures}")
    if ship:
        recipe = {"warm": dataclasses.asdict(WARM), "joint": dataclasses.asdict(JOINT), "photos": len(pictures)}
        lw.save(Aligner(model.network, name="likewise aligner", recipe=recipe, figures=model.figures), WEIGHTS)
        click.echo(f"{WEIGHTS}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
