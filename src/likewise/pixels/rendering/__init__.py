"""Pairs of images of lit places made from a seed, with the exact flow, occlusion, cameras and fundamental matrix.

A pair is a pure function of its seed and the renderer's settings: a street or a room of textured boxes, balls and
columns, seen by two cameras under two lights that are drawn independently. Training may use F alone; the exact flow is
for evaluation. Rays are in NumPy, all pixels at once; those of a camera have depth 1, so that t is the depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.errors import ConfigError, InputError
from likewise.pixels import geometry
from likewise.pixels.rendering import scenes
from likewise.pixels.rendering.scenes import Camera, Light, Solid, unit
from likewise.pixels.rendering.textures import Textures, held_out, procedural

Array = np.ndarray[Any, Any]
SIZE = (96, 128)
ATTEMPTS = 40
"""How often a place is drawn, and four times cameras in it, before the renderer gives up."""
CLOSEST = 0.7
"""The least depth, in metres, of what either camera sees."""
OVERLAP = 0.5
"""The least share of the first image that the second one sees."""
SLACK = 1e-6
"""A point counts as seen if nothing is nearer than this share of the way to it."""
LIFT = 2e-3
"""How far, in metres, a shadow ray starts above its surface."""
HIGHLIGHT = 24.0
"""The exponent of the highlights."""
SHOULDER = 0.7
"""Light above this is compressed towards 1."""
LUMA = np.array([0.2126, 0.7152, 0.0722])
AROUND = ((0.36, -0.3), (-0.36, 0.3))
"""Where the further rays of a pixel on an edge go."""
PART = 1 << 14
"""Rays that are followed at once: what they need fits into the cache of a processor, however large the image."""
HELD_OUT_SEED = 7_002_000_000
"""Seeds from here on belong to the held-out set, whose version 2 this is; training takes seeds below."""


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
        return geometry.inside(geometry.follow(self.flow), *self.flow.shape[-3:-1])


def render(
    seed: int,
    size: tuple[int, int] = SIZE,
    *,
    textures: Textures | Sequence[Any] | None = None,
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
    textures : Textures or list of images, optional
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
        textures: Textures | Sequence[Any] | None = None,
        size: tuple[int, int] = SIZE,
        *,
        motion: float = 1.0,
        lighting: float = 1.0,
        sensor: float = 1.0,
    ) -> None:
        textures = procedural(0) if textures is None else textures
        for name, value, low, high in (
            ("motion", motion, 0.01, 4.0),
            ("lighting", lighting, 0.0, 1.0),
            ("sensor", sensor, 0.0, 4.0),
        ):
            if not (isinstance(value, (int, float)) and low <= value <= high):
                raise ConfigError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
        if len(size) != 2 or not all(isinstance(s, int) and 8 <= s <= 8192 for s in size):
            raise ConfigError(f"size: expected (h, w), whole numbers from 8 to 8192, got {size!r}")
        self.textures = textures if isinstance(textures, Textures) else Textures(textures)
        self.size, self.motion, self.lighting, self.sensor = (size[0], size[1]), motion, lighting, sensor

    def __repr__(self) -> str:
        h, w = self.size
        options = f"motion={self.motion:g}, lighting={self.lighting:g}, sensor={self.sensor:g}"
        return f"Renderer({len(self.textures.photos)} textures, {h} × {w}, {options})"

    def pair(self, seed: int) -> Pair:
        """The pair of a seed."""
        solids, lights, a, b = draw(seed, self.size, self.motion)
        lights = lights[0], scenes.mix(*lights, self.lighting)
        shots = [view(solids, self.textures, *shot, self.size) for shot in ((lights[0], a), (lights[1], b))]
        factors = [exposure(s[0], light) for s, light in zip(shots, lights, strict=True)]
        factors[1] = math.exp((1 - self.lighting) * math.log(factors[0]) + self.lighting * math.log(factors[1]))
        images = [
            torch.from_numpy(develop(s[0], light, f, self.sensor, np.random.default_rng((seed, 5 + i))))
            for i, (s, light, f) in enumerate(zip(shots, lights, factors, strict=True))
        ]
        flow, occluded = carry(solids, a, b, shots[0][1])
        Ka, Kb, R, t = (torch.from_numpy(np.ascontiguousarray(m)) for m in (a.K, b.K, *a.to(b)))
        a_shown, b_shown = (i.permute(2, 0, 1).contiguous() for i in images)
        truth = torch.from_numpy(flow), torch.from_numpy(occluded), geometry.fundamental(Ka, Kb, R, t)
        return Pair(a_shown, b_shown, *truth, Ka, Kb, R, t)

    def batch(self, seeds: Sequence[int]) -> Pair:
        """The pairs of some seeds in one, with a leading dimension."""
        if len(seeds) == 0:
            raise InputError("seeds: expected at least one, got none")
        pairs = [self.pair(int(s)) for s in seeds]
        return Pair(*(torch.stack([getattr(p, f.name) for p in pairs]) for f in fields(Pair)))


def held_out_pairs(n: int = 100) -> list[Pair]:
    """The first n pairs of a fixed set: seeds of its own, the default settings, the textures of `held_out()`."""
    if not (isinstance(n, int) and 1 <= n <= 100_000):
        raise InputError(f"n: expected a whole number from 1 to 100000, got {n!r}")
    renderer = Renderer(held_out())
    return [renderer.pair(HELD_OUT_SEED + i) for i in range(n)]


# --------------------------------------------------------------------------------------------------- what a seed draws


def draw(seed: int, size: tuple[int, int], motion: float) -> tuple[list[Solid], tuple[Light, Light], Camera, Camera]:
    """The place, lights and cameras of a seed, cameras drawn until nothing is too near and most of a is inside b."""
    if not (isinstance(seed, int) and seed >= 0):
        raise InputError(f"seed: expected a whole number ≥ 0, got {seed!r}")
    grid = pixels(size, (12, 16))
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng((seed, 0, attempt))
        outdoors = rng.random() < 0.7
        solids = scenes.street(rng) if outdoors else scenes.room(rng)
        for _ in range(4):
            a = scenes.first_camera(rng, size)
            depth, _ = trace(solids, a.centre, a.rays(grid))
            b = scenes.second_camera(rng, a, size, float(np.clip(np.median(depth), 2.0, 9.0)), motion)
            there, far = b.project(a.centre + depth[:, None] * a.rays(grid))
            inside = ((there >= 0) & (there <= [size[1] - 1, size[0] - 1])).all(axis=1)
            near = min(depth.min(), trace(solids, b.centre, b.rays(grid))[0].min())
            if near > CLOSEST and far.min() > 0.1 and inside.mean() >= OVERLAP:
                lamps = [np.random.default_rng((seed, 2 + i)) for i in range(2)]
                kinds = [scenes.OUTDOORS[int(r.choice(3, p=scenes.SHARES))] if outdoors else "lamps" for r in lamps]
                one, two = (scenes.light(r, kind) for r, kind in zip(lamps, kinds, strict=True))
                return solids, (one, two), a, b
    raise InputError(f"motion: no cameras with an overlap of {OVERLAP:.0%} were found at {motion:g}; make it smaller")


def pixels(size: tuple[int, int], shape: tuple[int, int] | None = None) -> Float[np.ndarray, "n 2"]:
    """The pixels of an image, x then y, row by row; with `shape` so many over its height and width."""
    y, x = (np.linspace(0, s - 1, n) for s, n in zip(size, shape or size, strict=True))
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


# ---------------------------------------------------------------------------------------------------------------- rays


def trace(
    solids: Sequence[Solid],
    origin: Float[np.ndarray, "*n 3"],
    rays: Float[np.ndarray, "n 3"],
    last: float = math.inf,
    *,
    casting: bool = False,
) -> tuple[Float[np.ndarray, " n"], Any]:
    """(t, solid) of the first solid in 0 < t < last along rays, (∞, −1) if none; `casting`: that casts shadows."""
    best, which = np.full(len(rays), last), np.full(len(rays), -1)
    columns = np.ascontiguousarray(rays.T)  # (3, n): numpy is slow along an axis of three
    squared = (columns * columns).sum(axis=0)
    for k, solid in enumerate(solids):
        if casting and solid.encloses:
            continue
        apart = np.atleast_2d(origin - solid.centre).T
        reach = (apart * apart).sum(axis=0) - solid.bound
        near = np.flatnonzero(reach * squared <= (apart * columns).sum(axis=0) ** 2)
        t0, t1 = solid.cross(solid.map @ np.broadcast_to(apart, columns.shape)[:, near], solid.map @ columns[:, near])
        t = np.where(t0 > 0, t0, t1)
        met = (t0 <= t1) & (t > 0) & (t < best[near])
        best[near[met]], which[near[met]] = t[met], k
    return np.where(which < 0, math.inf, best), which


def _in_parts(function: Callable[[Array], tuple[Array, ...]], rays: Array) -> list[Array]:
    """What a function of rays gives, PART of them at a time."""
    made = [function(rays[i : i + PART]) for i in range(0, max(len(rays), 1), PART)]
    return [np.concatenate(arrays) for arrays in zip(*made, strict=True)]


def carry(
    solids: Sequence[Solid], a: Camera, b: Camera, depth: Float[np.ndarray, "h w"]
) -> tuple[Float[np.ndarray, "h w 2"], Bool[np.ndarray, "h w"]]:
    """The flow of the points that camera a sees to where they land in camera b, and whether they are hidden there.

    A point is hidden where a solid lies between it and camera b, or it lies behind that camera; what encloses the place
    and both cameras hides nothing.
    """
    start = pixels(depth.shape)
    points = a.centre + depth.reshape(-1, 1) * a.rays(start)
    there, far = b.project(points)
    meet = partial(trace, solids, b.centre, last=1.0 - SLACK, casting=True)
    _, before = _in_parts(meet, points - b.centre)
    return (there - start).reshape(*depth.shape, 2), ((before >= 0) | (far <= 0)).reshape(depth.shape)


def view(
    solids: Sequence[Solid], textures: Textures, light: Light, camera: Camera, size: tuple[int, int]
) -> tuple[Float[np.ndarray, "h w 3"], Float[np.ndarray, "h w"]]:
    """Linear radiance and depth that a camera sees.

    Two rays more through each pixel whose neighbour shows another face or other shadows.
    """
    at = pixels(size)
    see = partial(shade, solids, textures, light, camera)
    radiance, depth, marks = _in_parts(see, at)
    marks, edge = marks.reshape(size), np.zeros(size, bool)
    for one, two in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1])):
        change = marks[one] != marks[two]
        edge[one] |= change
        edge[two] |= change
    rows = np.flatnonzero(edge)
    for step in AROUND:
        radiance[rows] += _in_parts(see, at[rows] + step)[0]
    radiance[rows] /= 1 + len(AROUND)
    return radiance.reshape(*size, 3), depth.reshape(size)


def shade(
    solids: Sequence[Solid], textures: Textures, light: Light, camera: Camera, at: Float[np.ndarray, "n 2"]
) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, " n"], Any]:
    """Linear radiance and depth along the rays through pixels, and a mark that changes where edges are."""
    rays = camera.rays(at)
    depth, which = trace(solids, camera.centre, rays)
    points, eye = camera.centre + np.where(which < 0, 0, depth)[:, None] * rays, unit(-rays)
    colour, normal, bumped = (np.zeros(rays.shape) for _ in range(3))
    gloss, shines, marks = np.zeros(len(at)), np.ones(len(at), bool), np.full(len(at), -1)
    for k in np.unique(which[which >= 0]):
        rows, solid = np.flatnonzero(which == k), solids[k]
        face, metres, axes, outward = solid.chart((points[rows] - solid.centre) @ solid.map.T)
        facing = np.einsum("ni,ni->n", outward, eye[rows])
        normal[rows] = outward * np.where(facing < 0, -1, 1)[:, None]
        foot = depth[rows] / camera.K[0, 0] / np.sqrt(np.maximum(np.abs(facing), 0.05))
        turn = np.array([[math.cos(solid.turn), math.sin(solid.turn)], [-math.sin(solid.turn), math.cos(solid.turn)]])
        u, v = (metres @ turn / solid.metres + solid.shift + face[:, None] * [0.37, 0.61]).T
        photo = (solid.faces[face] * len(textures.photos)).astype(int)
        colour[rows], slopes = textures.sample(photo, u, v, foot / solid.metres)
        tilt = np.einsum("ni,nij->nj", slopes @ turn.T, axes)  # the texture's slopes are the surface's, too
        bumped[rows] = unit(normal[rows] - solid.bump * tilt)
        gloss[rows], shines[rows], marks[rows] = solid.gloss, solid.shines, (k * 8 + face) << 8

    up = 0.5 + 0.5 * bumped[:, 2:]
    above, below, sky = light.ambient
    radiance = colour * np.where(shines[:, None], sky, up * above + (1 - up) * below)
    start = points + LIFT * normal
    for bit, lamp in enumerate(light.lamps):
        way = lamp[:3] - start
        rows = np.flatnonzero(~shines & (np.einsum("ni,ni->n", normal, way) > 0))
        rows = rows[trace(solids, start[rows], way[rows], 1.0, casting=True)[1] < 0]
        marks[rows] += 1 << bit
        far = np.linalg.norm(way[rows], axis=1)
        towards = way[rows] / far[:, None]
        falls = np.einsum("ni,ni->n", bumped[rows], towards).clip(0)
        shine = np.einsum("ni,ni->n", bumped[rows], unit(towards + eye[rows])).clip(0) ** HIGHLIGHT
        given = colour[rows] * falls[:, None] + (gloss[rows] * shine * (falls > 0))[:, None]
        radiance[rows] += given * lamp[4:] / (1 + (far / lamp[3]) ** 2)[:, None]
    return radiance, depth, marks


# ------------------------------------------------------------------------------------------------------------ an image


def exposure(radiance: Float[np.ndarray, "h w 3"], light: Light) -> float:
    """The factor that brings a typical pixel, after a tone curve of 1/2.2, near the light's target."""
    return float(light.target**2.2 / max(float(np.mean(np.sqrt(radiance @ LUMA))) ** 2, 1e-9))


def develop(
    radiance: Float[np.ndarray, "h w 3"], light: Light, factor: float, sensor: float, rng: np.random.Generator
) -> Float[np.ndarray, "h w 3"]:
    """An image in [0, 1] as float32: blur, exposure, cast, veil, vignette, shoulder, noise, tone curve.

    `sensor` scales blur, vignette and noise.
    """
    if light.blur * sensor > 0.2:
        radiance = cv2.GaussianBlur(radiance, (0, 0), light.blur * sensor, borderType=cv2.BORDER_REPLICATE)
    h, w = radiance.shape[:2]
    y, x = np.linspace(-1, 1, h)[:, None], np.linspace(-1, 1, w)
    shown = radiance * (factor * light.cast / (1 + light.veil)) + light.veil * light.target**2.2
    shown = shown * (1 - 0.5 * min(light.vignette * sensor, 1.0) * (x * x + y * y))[..., None]
    rest = 1 - SHOULDER
    shown = np.where(shown > SHOULDER, 1 - rest * np.exp((SHOULDER - np.maximum(shown, SHOULDER)) / rest), shown)
    shown = shown + 0.5 * light.grain * sensor * np.sqrt(0.15 + shown) * rng.standard_normal(shown.shape)
    return np.asarray(shown.clip(0, 1) ** (light.gamma / 2.2), dtype=np.float32)
