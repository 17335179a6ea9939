"""Fill the figures of the cards in likewise/weights: between `<!-- figures -->` and `<!-- /figures -->`, measured."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

import train_generators as training
from likewise.distributions.shipped import NAMES, Likelihood, describer
from likewise.media import write_text
from likewise.store import checkpoint

BLOCK = re.compile(r"<!-- figures -->\n.*?<!-- /figures -->", re.DOTALL)
Rows = list[dict[str, Any]]


def fill(sweep: Rows, fashion: Path, folder: Path = training.WEIGHTS) -> None:
    """Every card anew."""
    for name in NAMES:
        file = folder / f"{name}.safetensors"
        lines = [*_figures(name, sweep, fashion, file), f"{file.stat().st_size / 1e6:.2f} MB."]
        card = file.with_suffix(".md")
        block = "<!-- figures -->\n" + "\n".join(lines) + "\n<!-- /figures -->"
        write_text(card, BLOCK.sub(lambda _, block=block: block, card.read_text(encoding="utf-8")))


def _figures(name: str, sweep: Rows, fashion: Path, file: Path) -> list[str]:
    x, y = (part[:5000] for part in training.pictures(fashion, "t10k"))
    if name == "fashion-features":
        return [f"Accuracy on {len(x):,} test pictures: {_accuracy(file, x, y):.3f}."]
    lines = [_quality(name, sweep)]
    if name == "fashion-vae":
        bits = -Likelihood(samples=64)(x[:1000]).mean() / (784 * math.log(2))
        lines.append(f"−log p of 1,000 test pictures: at most {bits:.3f} bits a pixel (64 importance draws).")
    return lines


def _accuracy(file: Path, x: torch.Tensor, y: torch.Tensor) -> float:
    arrays, header = checkpoint.read(file)
    head = nn.Linear(header["size"], 10)
    head.load_state_dict({key: torch.from_numpy(arrays[f"head.2.{key}"]) for key in ("weight", "bias")})
    with torch.no_grad():
        return float((head(torch.relu(describer()(x))).argmax(1) == y).float().mean())


def _quality(name: str, sweep: Rows) -> str:
    zero = next(r for r in sweep if r["generator"] == name and r["rho"] == 0)
    parts = [f"{key} {zero[key]:.3g} ± {zero[f'{key} ±']:.1g}" for key in ("frechet", "precision", "recall")]
    words = ", ".join(parts).replace("frechet", "Fréchet distance")
    return f"Against test pictures, under fashion-features: {words} (distributions-sweep.json, ρ = 0)."
