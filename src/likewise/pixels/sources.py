"""Where pairs of views with fundamental matrices come from: rendered places, or photos reconstructed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from likewise.pixels.photos import Photos
from likewise.pixels.views import Pairs, Views

Scenes = Callable[[int, tuple[int, int], Sequence[int]], Views]
"""(how many, size, seed) → pairs of views."""


def scenes_of(what: Scenes | str | os.PathLike[str] | None, photos: Photos) -> Scenes | None:
    """The source of pairs that is meant: "rendered", a folder of `likewise pixels sfm`, or a function as it is."""
    if what is None or callable(what):
        return what
    return rendered(photos) if what == "rendered" else cast(Scenes, Pairs.open(what).views)


def rendered(photos: Photos, *, motion: float = 1.0) -> Scenes:
    """Lit places with these photos on their walls; their exact flow is not looked at."""
    from likewise.pixels.rendering import Renderer
    from likewise.pixels.textures import collected

    textures = collected(photos.pictures)  # once: their pyramids take a second

    def pairs(n: int, size: tuple[int, int], seed: Sequence[int]) -> Views:
        renderer = Renderer(textures, size, motion=motion)
        first = int(np.random.default_rng(list(seed)).integers(2**31))
        made = renderer.batch([first + i for i in range(n)])
        return Views(made.a, made.b, torch.as_tensor(made.F))

    return pairs
