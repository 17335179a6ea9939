"""The five walks give what version 0.1.0 gave: compare, fit, index + search, harvest → sweep, train.

`LIKEWISE_GOLDEN=write pytest tests/test_golden.py` records them anew. On the kind of machine that recorded them numbers
agree to 1e-9; on another, whose instructions round float32 networks in another order, to 1e-3.

Since 0.1.0 `compare` and `search` have changed on purpose: the aligner, the matches (XFeat and LighterGlue) and the
verdict's coefficients are others; what embeds, transports and samples is as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from skimage import data as photographs

import likewise as lw
from likewise import media as media
from likewise.distributions import Generator, Normal, harvest

FILE = Path(__file__).parent / "golden" / "walks.json"


def machine() -> str:
    """What decides the last bits of a float32 network."""
    return f"torch {torch.__version__}, numpy {np.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def crop(photo: np.ndarray, top: int, left: int, h: int = 144, w: int = 192) -> np.ndarray:
    return np.ascontiguousarray(photo[top : top + h, left : left + w])


def summary(x: Any) -> list[float]:
    """A few numbers that a changed array does not keep."""
    a = np.asarray(x, dtype=np.float64)
    ramp = np.cos(np.arange(a.size)).reshape(a.shape)
    return [float(a.mean()), float(np.abs(a).mean()), float((a * ramp).sum())]


def compare(folder: Path) -> dict[str, Any]:
    cat = photographs.chelsea()
    media.write_image(folder / "a.png", crop(cat, 60, 100))
    media.write_image(folder / "b.png", (crop(cat, 66, 108) * 0.7).astype(np.uint8))
    result = lw.compare(folder / "a.png", folder / "b.png")
    return {
        "level": result.level,
        "distance": result.distance,
        "flow": summary(result.flow),
        "confidence": summary(result.confidence),
        "image distance": result.beside.distance,
        "matches": len(result.matches),
        "points": summary(np.concatenate([result.matches.a, result.matches.b])),
        "verdict": result.verdict,
        "probability": result.pair.probability,
    }


def fit(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 5)
    X = [draw.normal(c, 1.5, size=(draw.integers(3, 7), 4)) for c in y]
    model = lw.sets.WassersteinLMNN(max_iter=8).fit(X, y)
    lw.save(model, folder / "m.safetensors")
    again = lw.load(folder / "m.safetensors")
    return {
        "distances": summary(lw.sets.distances(X)),
        "M0": summary(model.M0_),
        "pairwise": summary(model.pairwise(X, X)),
        "predicted": again.predict(X).tolist(),
        "plan": summary(model.transport_plan(X[0], X[7])),
    }


def search(folder: Path) -> dict[str, Any]:
    photos = {"cat": photographs.chelsea(), "cup": photographs.coffee(), "rocket": photographs.rocket()}
    for name, photo in photos.items():
        for i, corner in enumerate(((0, 0), (40, 60), (90, 150))):
            media.write_image(folder / "photos" / name / f"{i}.png", crop(photo, *corner))
    with lw.search.Collection.build(folder / "photos", folder / "index") as built:
        count = len(built)
    with lw.search.Collection.open(folder / "index") as collection:
        result = collection.search((crop(photos["cup"], 44, 66) * 0.8).astype(np.uint8), 4, verify=2)
    return {
        "count": count,
        "hits": [
            [
                str(Path(h.path).relative_to(folder / "photos")),
                h.rank,
                h.distance,
                h.alike,
                h.verdict,
                h.probability,
            ]
            for h in result
        ],
    }


def sweep(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6))
    generator = Generator(net, Normal(3))
    bank = harvest(generator, 300, k=3, out=folder / "bank", progress=False)
    real = np.random.default_rng(1).normal(size=(200, 6))
    table = lw.distributions.sweep(generator, lw.distributions.Bank.open(folder / "bank"), (-1.0, 0.0, 1.0), real=real)
    return {
        "latents": summary(bank.latents),
        "log_sigma": summary(bank.log_sigma),
        "ess": [bank.ess(-1.0), bank.ess(0.5)],
        "cells": [[c.rho, c.frechet, c.precision, c.recall] for c in table.cells],
    }


def train(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    classes = np.repeat(np.arange(6), 6)
    items = [np.clip(40 * c + draw.normal(0, 60, (36, 36, 3)), 0, 255).astype(np.uint8) for c in classes]
    config = lw.images.Config(
        backbone="convnet", size=32, shortest=36, dim=16, classes=3, norm="trained", queue=16, steps=4, evaluate_every=2
    )
    model = lw.images.train(lw.images.Dataset(items, classes), config, out=folder / "run")
    return {
        "rows": summary(model.embed(items)),
        "again": summary(lw.load(folder / "run" / "model.safetensors").embed(items)),
    }


WALKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "compare": compare,
    "fit": fit,
    "search": search,
    "sweep": sweep,
    "train": train,
}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_ends_where_it_ended(walk: str, tmp_path: Path) -> None:
    got = json.loads(json.dumps(WALKS[walk](tmp_path)))
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("LIKEWISE_GOLDEN") == "write":
        FILE.write_text(json.dumps({**kept, "machine": machine(), walk: got}, indent=1, ensure_ascii=False) + "\n")
        return
    agree(got, kept[walk], 1e-9 if kept["machine"] == machine() else 1e-3, walk)


def agree(got: Any, kept: Any, tolerance: float, where: str) -> None:
    """Numbers to a tolerance, all else exactly."""
    if isinstance(kept, dict):
        assert got.keys() == kept.keys(), where
        for key in kept:
            agree(got[key], kept[key], tolerance, f"{where}.{key}")
    elif isinstance(kept, list):
        assert len(got) == len(kept), where
        for i, (a, b) in enumerate(zip(got, kept, strict=True)):
            agree(a, b, tolerance, f"{where}[{i}]")
    elif isinstance(kept, float):
        assert got == pytest.approx(kept, rel=tolerance, abs=tolerance), where
    else:
        assert got == kept, where
