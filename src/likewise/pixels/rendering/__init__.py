"""Pairs of images of lit places made from a seed, with the exact flow, occlusion, cameras and fundamental matrix.

A pair is a pure function of its seed and the renderer's settings: textured planes, boxes, balls, columns and displaced
surfaces, seen by two cameras under two lights that are drawn independently. Training may use F alone; the exact flow is
for evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.errors import ConfigError, InputError
from likewise.pixels.geometry import fundamental
from likewise.pixels.rendering import kernels, scenes
from likewise.pixels.rendering.scenes import Camera, Light, Scene
from likewise.pixels.rendering.textures import Textures, collected, held_out

Array = np.ndarray[Any, Any]
SIZE = (96, 128)
ATTEMPTS = 40
"""How often cameras are drawn in a place, and then another place, before the renderer gives up."""
CLOSEST = 0.7
"""The least depth, in metres, of what either camera sees."""
OVERLAP = 0.5
"""The least share of the first image that the second one sees."""
VERSIONS = {1: {"size": SIZE, "motion": 1.0, "lighting": 1.0, "sensor": 1.0}}
"""The settings of the held-out sets by version; seeds are HELD_OUT_SEED + 10⁶ · version + i."""
HELD_OUT_SEED = 7_000_000_000
"""Seeds from here on belong to held-out sets; training takes seeds below."""


@dataclass(frozen=True)
class Pair:
    """Two images of a place and what is true of them; tensors, with a leading dimension in a batch.

    flow: pixel p of a goes to p + flow[p] in b, for every pixel, seen or not; occluded: something stands before it in
    b; F: [y, 1] F [x, 1]ᵀ = 0 for x in a and y in b, of unit norm; R, t: X_b = R X_a + t.
    """

    a: Float[Tensor, "*n 3 h w"]
    b: Float[Tensor, "*n 3 h w"]
    flow: Float[Tensor, "*n h w 2"]
    occluded: Bool[Tensor, "*n h w"]
    F: Float[Tensor, "*n 3 3"]
    Ka: Float[Tensor, "*n 3 3"]
    Kb: Float[Tensor, "*n 3 3"]
    R: Float[Tensor, "*n 3 3"]
    t: Float[Tensor, "*n 3"]

    @property
    def visible(self) -> Bool[Tensor, "*n h w"]:
        """Where the point of a lies inside b (0 ≤ x ≤ w − 1, 0 ≤ y ≤ h − 1) and nothing stands before it."""
        return self.inside & ~self.occluded

    @property
    def inside(self) -> Bool[Tensor, "*n h w"]:
        """Where the point of a lands inside the frame of b."""
        h, w = self.flow.shape[-3:-1]
        x = torch.arange(w, dtype=self.flow.dtype) + self.flow[..., 0]
        y = torch.arange(h, dtype=self.flow.dtype)[:, None] + self.flow[..., 1]
        return (x >= 0) & (x <= w - 1) & (y >= 0) & (y <= h - 1)


FIELDS = ("a", "b", "flow", "occluded", "F", "Ka", "Kb", "R", "t")


def render(
    seed: int,
    size: tuple[int, int] = SIZE,
    *,
    textures: Textures | Sequence[Array] | None = None,
    motion: float = 1.0,
    lighting: float = 1.0,
    sensor: float = 1.0,
) -> Pair:
    """One pair of lit places with exact flow; see Renderer, which is faster for many.

    Parameters
    ----------
    seed : int
        What the pair is a function of.
    size : tuple (h, w)
        The size of both images.
    textures, motion, lighting, sensor
        As for `Renderer`.

    Returns
    -------
    Pair
        Images a, b, flow, occluded, F, Ka, Kb, R, t as tensors.

    Examples
    --------
    >>> import likewise as lw
    >>> pair = lw.pixels.render(3, (64, 96))
    >>> tuple(pair.flow.shape), bool(pair.visible.float().mean() > 0.5)
    ((64, 96, 2), True)
    """
    return Renderer(textures, size, motion=motion, lighting=lighting, sensor=sensor).pair(seed)


class Renderer:
    """Pairs by seed. The same seed and settings give the same bytes.

    Parameters
    ----------
    textures : Textures or list of arrays, optional
        What covers the walls; made-up patterns where none are given.
    size : tuple (h, w)
        The size of both images.
    motion : float
        How far the second camera moves, turns and zooms, 1 being about 8 px of flow at 96 × 128.
    lighting : float
        0 gives both images one light, 1 independent ones, between them a mixture.
    sensor : float
        The strength of noise, blur and vignette.

    Raises
    ------
    ConfigError
        Where an option is out of its range.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.pixels.Renderer(size=(64, 96)).batch([1, 2]).a.shape
    torch.Size([2, 3, 64, 96])
    """

    def __init__(
        self,
        textures: Textures | Sequence[Array] | None = None,
        size: tuple[int, int] = SIZE,
        *,
        motion: float = 1.0,
        lighting: float = 1.0,
        sensor: float = 1.0,
    ) -> None:
        _bounded("motion", motion, 0.01, 4.0)
        _bounded("lighting", lighting, 0.0, 1.0)
        _bounded("sensor", sensor, 0.0, 4.0)
        if len(size) != 2 or not all(isinstance(s, int) and 8 <= s <= 8192 for s in size):
            raise ConfigError(f"size: expected (h, w), whole numbers from 8 to 8192, got {size!r}")
        self.textures = collected(textures)
        self.size, self.motion, self.lighting, self.sensor = (size[0], size[1]), motion, lighting, sensor

    def __repr__(self) -> str:
        h, w = self.size
        options = f"motion={self.motion:g}, lighting={self.lighting:g}, sensor={self.sensor:g}"
        return f"Renderer({len(self.textures)} textures, {h} × {w}, {options})"

    def pair(self, seed: int) -> Pair:
        """The pair of a seed."""
        scene, a, b = setting(seed, self.size, self.motion)
        views = self._pictures(seed, scene, (a, b))
        flow, _, hidden = _carried(a, b, scene, views[0][1])
        pictures = [torch.from_numpy(np.ascontiguousarray(v[0].transpose(2, 0, 1))) for v in views]
        Ka, Kb, R, t = (torch.from_numpy(np.ascontiguousarray(m)) for m in (a.K, b.K, *a.to(b)))
        F = fundamental(Ka, Kb, R, t)
        return Pair(pictures[0], pictures[1], torch.from_numpy(flow), torch.from_numpy(hidden), F, Ka, Kb, R, t)

    def batch(self, seeds: Sequence[int]) -> Pair:
        """The pairs of some seeds in one, with a leading dimension."""
        if len(seeds) == 0:
            raise InputError("seeds: expected at least one, got none")
        pairs = [self.pair(int(s)) for s in seeds]
        return Pair(*(torch.stack([getattr(p, name) for p in pairs]) for name in FIELDS))

    def _pictures(self, seed: int, scene: Scene, pair: tuple[Camera, Camera]) -> list[tuple[Array, Array]]:
        """(image (h, w, 3), depth (h, w)) of each camera under its light."""
        scene, lights = painted(seed, scene, self.textures), lights_of(seed, scene.indoors, self.lighting)
        shot = [_view(c, self.size, scene, self.textures, light) for c, light in zip(pair, lights, strict=True)]
        factors = [scenes.exposure(s[0], light) for s, light in zip(shot, lights, strict=True)]
        factors[1] = math.exp((1 - self.lighting) * math.log(factors[0]) + self.lighting * math.log(factors[1]))
        pictures = []
        for i in range(2):
            light, rng = scenes.taken(lights[i], self.sensor), np.random.default_rng((seed, 5 + i))
            pictures.append((developed(shot[i][0], light, factors[i], rng), shot[i][1]))
        return pictures


def _bounded(name: str, value: float, low: float, high: float) -> None:
    if not (isinstance(value, (int, float)) and low <= value <= high):
        raise ConfigError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")


# --------------------------------------------------------------------------------------------------- what a seed draws


def setting(seed: int, size: tuple[int, int], motion: float) -> tuple[Scene, Camera, Camera]:
    """The place and the two cameras of a seed: drawn until nothing is too near and most of a is inside b."""
    if not (isinstance(seed, int) and seed >= 0):
        raise InputError(f"seed: expected a whole number ≥ 0, got {seed!r}")
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng((seed, 0, attempt))
        scene = scenes.place(rng)
        for _ in range(4):
            a = scenes.first(rng, size)
            points, depth = _seen(a, scene, size)
            b = scenes.second(rng, a, size, float(np.clip(np.median(depth), 2.0, 9.0)), motion)
            if (
                depth.min() > CLOSEST
                and _overlap(points, b, size) >= OVERLAP
                and _seen(b, scene, size)[1].min() > CLOSEST
            ):
                return scene, a, b
    raise InputError(f"motion: no cameras with an overlap of {OVERLAP:.0%} were found at {motion:g}; make it smaller")


def _seen(camera: Camera, scene: Scene, size: tuple[int, int]) -> tuple[Array, Array]:
    """Points of the world (n, 3) and depths (n,) that a coarse grid of a camera's pixels sees."""
    h, w = size
    y, x = (g.ravel() for g in np.meshgrid(np.linspace(0, h - 1, 12), np.linspace(0, w - 1, 16), indexing="ij"))
    depth, _ = kernels.depths(camera.flat, x, y, scene.solids, scene.tables)
    rays = np.linalg.solve(camera.K, np.stack([x, y, np.ones_like(x)])) * depth
    return rays.T @ camera.rotation + camera.centre, depth


def _overlap(points: Array, b: Camera, size: tuple[int, int]) -> float:
    """The share of points that land inside b, or 0 if any lies behind it or nearly so."""
    local = (points - b.centre) @ b.rotation.T
    if local[:, 2].min() < 0.1:
        return 0.0
    at = (local / local[:, 2:]) @ b.K.T
    return float(np.mean((at[:, 0] >= 0) & (at[:, 0] <= size[1] - 1) & (at[:, 1] >= 0) & (at[:, 1] <= size[0] - 1)))


def painted(seed: int, scene: Scene, textures: Textures) -> Scene:
    """The scene with its solids painted: scale, shift and turn of a texture, bump, gloss, and a texture a face."""
    rng = np.random.default_rng((seed, 1))
    solids = scene.solids.copy()
    for k in range(len(scene)):
        turn = rng.normal(0, 0.15) + math.pi * (rng.random() < 0.15)
        gloss = rng.uniform(0.05, 0.5) * (rng.random() < 0.3)
        paint = 1 / scene.sizes[k], rng.uniform(0, 4), rng.uniform(0, 4), math.cos(turn), math.sin(turn)
        solids[k, scenes.PAINT : scenes.PAINT + 7] = *paint, rng.uniform(0.0, 0.8), gloss
        one, many = np.full(6, rng.random()), rng.random(6)
        solids[k, scenes.TEXTURE :] = np.floor((many if rng.random() < 0.5 else one) * len(textures))
    return replace(scene, solids=solids)


def lights_of(seed: int, indoors: bool, share: float) -> tuple[Light, Light]:
    """The lights of a and b: drawn independently, the second mixed with the first where `share` < 1."""
    a, b = (scenes.light(np.random.default_rng((seed, 2 + i)), indoors=indoors) for i in range(2))
    return a, scenes.mixed(a, b, share)


# --------------------------------------------------------------------------------------------------------- what is true


def _carried(a: Camera, b: Camera, scene: Scene, depth: Array) -> tuple[Array, Array, Array]:
    flow, there, hidden = kernels.carried(a.flat, b.flat, depth, scene.solids, scene.tables)
    return flow, there, hidden


def _view(
    camera: Camera, size: tuple[int, int], scene: Scene, textures: Textures, light: Light
) -> tuple[Array, Array, Array]:
    radiance, depth, solid = kernels.view(
        camera.flat, *size, scene.solids, scene.tables, *textures.pyramid, light.rows, True
    )
    return radiance, depth, solid


def developed(
    radiance: Float[np.ndarray, "h w 3"], light: Light, factor: float, rng: np.random.Generator
) -> Float[np.ndarray, "h w 3"]:
    """An image in [0, 1] as float32: blur, exposure, cast, veil, vignette, shoulder, noise, tone curve."""
    if light.blur > 0.2:
        radiance = cv2.GaussianBlur(radiance, (0, 0), light.blur, borderType=cv2.BORDER_REPLICATE)
    noise = rng.standard_normal(radiance.shape, dtype=np.float32) if light.grain > 0 else np.zeros_like(radiance)
    veil = light.veil * light.target**2.2
    gain = factor * light.cast / (1 + light.veil)
    curve = np.linspace(0, 1, 1024) ** (2 * light.gamma / 2.2)
    picture: Array = kernels.toned(radiance, gain, veil, light.vignette, 0.5 * light.grain, noise, curve)
    return picture


# --------------------------------------------------------------------------------------------------------- the held-out


def held_out_pairs(n: int = 100, version: int = 1) -> list[Pair]:
    """The first n pairs of a fixed set: its version stands for seeds and settings, its textures are `held_out()`."""
    if version not in VERSIONS:
        raise InputError(f"version: expected one of {', '.join(map(str, VERSIONS))}, got {version!r}")
    if not (isinstance(n, int) and 1 <= n <= 100_000):
        raise InputError(f"n: expected a whole number from 1 to 100000, got {n!r}")
    settings: dict[str, Any] = VERSIONS[version]
    renderer = Renderer(held_out(), **settings)
    return [renderer.pair(HELD_OUT_SEED + 1_000_000 * version + i) for i in range(n)]
