"""Folders of small pictures and an embedder that needs no network: what galleries are tested on."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likewise import inputs, media
from likewise.errors import LikewiseError
from likewise.images import Skipped
from likewise.pixels import matching
from likewise.pixels.features import Features, detect_as_is
from likewise.search import local
from likewise.types import Image

DIM = 12
WHOLE = DIM + local.projection().dim
"""Numbers of a vector: the embedding's and the VLAD's."""


class Patches:
    """A picture as the mean colours of its four quarters, centred a little, of length 1: 12 numbers, no network."""

    dim = DIM

    def __init__(self, name: str = "patches", digest: str = "d1") -> None:
        self.name, self.digest = name, digest
        self.skipped: tuple[Skipped, ...] = ()
        self.seen: list[str] = []

    def embed(self, images: Any, *, on_error: str = "raise") -> np.ndarray:
        rows, skipped = [], []
        for i, item in enumerate(inputs.images(images)):
            try:
                rows.append(self.row(item.pixels))
                self.seen.append(item.name)
            except LikewiseError as error:
                if on_error == "raise":
                    raise
                skipped.append(Skipped(i, item.name, str(error)))
        self.skipped = tuple(skipped)
        return np.asarray(rows, np.float32).reshape(len(rows), DIM)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"name": self.name, "digest": self.digest}

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Patches:
        return cls(header["name"], header["digest"])

    @staticmethod
    def row(array: np.ndarray) -> np.ndarray:
        h, w = array.shape[0] // 2, array.shape[1] // 2
        quarters = [array[a : a + h, b : b + w].reshape(-1, 3).mean(axis=0) for a in (0, h) for b in (0, w)]
        x = np.concatenate(quarters) / 255 - 0.4
        return x / np.linalg.norm(x)


def paint(path: Path, seed: int) -> Path:
    """A picture of four random quarters."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)
    return media.write_image(path, np.kron(colours, np.ones((8, 8, 1), np.uint8)))


def album(root: Path, classes: int = 4, each: int = 6, first: int = 0) -> Path:
    """classes × each pictures in folders kind0, kind1 …, every other class below a further folder `deep`."""
    for c in range(classes):
        for i in range(each):
            folder = root / ("deep" if c % 2 else ".") / f"kind{c}"
            paint(folder / f"p{i}.png", first + c * each + i)
    return root


@functools.cache
def _detected(data: bytes, shape: tuple[int, ...], name: str, most: int) -> Features:
    pixels = torch.from_numpy(np.frombuffer(data, np.float32).reshape(shape).copy())
    return detect_as_is(pixels, name, most)


def detect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the features of a picture found once for all tests: the same few are indexed again and again."""

    def detect(pixels: torch.Tensor, name: str, most: int) -> Features:
        return _detected(pixels.numpy().tobytes(), tuple(pixels.shape), name, most)

    monkeypatch.setattr(local, "detect_as_is", detect)


def glue_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have descriptors that are each other's nearest matched, in place of LightGlue, where hundreds of pairs are."""

    def glued(name: str, a: Features, b: Features, *_: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        similar = a.descriptors @ b.descriptors.T
        j = similar.argmax(axis=1)
        i = np.flatnonzero((similar.argmax(axis=0)[j] == np.arange(len(j))) & (similar.max(axis=1) > 0.82))
        return i, j[i], similar[i, j[i]]

    monkeypatch.setattr(matching, "glued", glued)


def brute(model: Patches, query: Any, paths: list[Path], k: int) -> list[tuple[str, float]]:
    """The k nearest by a loop over all pairs, in float64, by distance and then path."""

    def row(item: Any) -> np.ndarray:
        vlads = local.vlad(local.extract(Image(item)), local.projection().centres)[None]
        x = local.joined(model.embed([item]), vlads, model.name)[0].astype(np.float64)
        return x / np.linalg.norm(x)

    q = row(query)
    result = [(float(np.sqrt(np.sum((row(p) - q) ** 2))), str(p)) for p in paths]
    return [(path, distance) for distance, path in sorted(result)[:k]]
