"""The light of a picture and the camera that takes it: day, evening, overcast, lamps, night; exposure, tone, noise.

All light is linear until `developed` turns it into a picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

SUN, LAMP = 0.0, 1.0
LUMA = np.array([0.2126, 0.7152, 0.0722])
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Light:
    """lamps (m, 12): kind, place or direction, axis of the cone, cosine of its edge, colour, reach; ambient (9,): from
    above, from below, of the backdrop; then what the camera does: the mean it exposes for, tone curve, colour cast,
    veil of stray light.
    """

    kind: str
    lamps: Float[np.ndarray, "m 12"]
    ambient: Float[np.ndarray, "9"]
    target: float
    gamma: float
    cast: Float[np.ndarray, "3"]
    veil: float
    vignette: float
    blur: float
    grain: float

    @property
    def rows(self) -> Float[np.ndarray, "m 12"]:
        """What the kernels take: the ambient light in the first row, then the lamps."""
        return np.concatenate([np.pad(self.ambient, (0, 3))[None], self.lamps])


def light(rng: np.random.Generator, *, indoors: bool) -> Light:
    """One random light; rooms have lamps or windows, places outdoors any."""
    kinds = INDOORS if indoors else OUTDOORS
    shares = np.array([share for share, _ in kinds])
    return kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))][1](rng)


def mixed(a: Light, b: Light, share: float) -> Light:
    """The light (1 − share) · a + share · b: light adds up; what the camera does is between the two."""
    if share in (0.0, 1.0):
        return b if share else a
    lamps = np.concatenate([_dimmed(a.lamps, 1 - share), _dimmed(b.lamps, share)])
    between = {
        n: (1 - share) * getattr(a, n) + share * getattr(b, n)
        for n in ("ambient", "target", "gamma", "cast", "veil", "vignette", "blur", "grain")
    }
    return Light(f"{a.kind} to {b.kind}", lamps, **between)


def _dimmed(lamps: Array, share: float) -> Array:
    lamps = lamps.copy()
    lamps[:, 8:11] *= share
    return lamps


# ----------------------------------------------------------------------------------------------------- kinds of light


def _camera(rng: np.random.Generator, low: float, high: float, grain: tuple[float, float]) -> dict[str, Any]:
    """What a camera draws for itself: exposure, tone curve, white balance, vignette, softness, noise."""
    return {
        "target": rng.uniform(low, high) * (rng.uniform(0.3, 0.8) if rng.random() < 0.4 and low > 0.2 else 1.0),
        "gamma": float(np.clip(math.exp(rng.normal(0, 0.5)), 0.5, 1.7)),
        "cast": np.exp(rng.normal(0, 0.07, 3)),
        "veil": rng.uniform(0.3, 1.5) if rng.random() < 0.25 else 0.0,
        "vignette": rng.uniform(0, 0.35),
        "blur": rng.uniform(0, 0.55),
        "grain": math.exp(rng.uniform(*np.log(grain))),
    }


def _sun(rng: np.random.Generator, low: float, high: float, colour: Any) -> Array:
    height, round_ = rng.uniform(low, high), rng.uniform(0, 2 * math.pi)
    at = [math.cos(height) * math.sin(round_), math.cos(height) * math.cos(round_), math.sin(height)]
    return np.array([[SUN, *at, 0, 0, 0, 0, *colour, 1.0]])


def _lamp(rng: np.random.Generator, at: Any, aim: Any, edge: float, colour: Any, reach: float) -> Array:
    axis = np.asarray(aim, float) - np.asarray(at, float)
    return np.array([[LAMP, *at, *(axis / np.linalg.norm(axis)), edge, *colour, reach]])


def _tint(rng: np.random.Generator, *colour: float) -> Array:
    return np.array(colour) * np.exp(rng.normal(0, 0.06, 3))


def _day(rng: np.random.Generator) -> Light:
    sky = _tint(rng, 0.34, 0.38, 0.46) * rng.uniform(0.6, 1.4)
    ambient = np.concatenate([sky, _tint(rng, 0.24, 0.21, 0.17), _tint(rng, 0.7, 0.78, 0.9)])
    lamps = _sun(rng, 0.45, 1.35, _tint(rng, 0.68, 0.65, 0.58))
    return Light("day", lamps, ambient, **_camera(rng, 0.3, 0.6, (0.003, 0.01)))


def _evening(rng: np.random.Generator) -> Light:
    ambient = np.concatenate([_tint(rng, 0.24, 0.25, 0.33), _tint(rng, 0.18, 0.14, 0.12), _tint(rng, 0.75, 0.5, 0.4)])
    lamps = _sun(rng, 0.12, 0.45, _tint(rng, 0.78, 0.53, 0.32))
    return Light("evening", lamps, ambient, **_camera(rng, 0.25, 0.5, (0.004, 0.014)))


def _overcast(rng: np.random.Generator) -> Light:
    ambient = np.concatenate([_tint(rng, 0.8, 0.85, 0.9), _tint(rng, 0.25, 0.24, 0.22), _tint(rng, 0.8, 0.82, 0.85)])
    lamps = _sun(rng, 0.7, 1.4, _tint(rng, 0.15, 0.15, 0.16))
    return Light("overcast", lamps, ambient, **_camera(rng, 0.25, 0.55, (0.003, 0.01)))


SODIUM, WHITE = (1.5, 0.85, 0.35), (1.1, 1.1, 1.15)


def _night(rng: np.random.Generator) -> Light:
    """Little blue light from above, one to three lamps (sodium or white) that reach a few metres."""
    above = _tint(rng, 0.06, 0.085, 0.14) * rng.uniform(0.6, 1.6)
    ambient = np.concatenate([above, above * 0.5, above * rng.uniform(0.4, 1.0)])
    colour = SODIUM if rng.random() < 0.6 else WHITE
    lamps = []
    for _ in range(int(rng.integers(1, 4))):
        at = (rng.uniform(-4, 4), rng.uniform(0.5, 8), rng.uniform(2.2, 4.5))
        aim = (at[0] + rng.normal(0, 1), at[1] + rng.normal(0, 1), 0.0)
        lamps.append(_lamp(rng, at, aim, rng.uniform(-1.2, 0.4), _tint(rng, *colour), rng.uniform(2.5, 5.0)))
    return Light("night", np.concatenate(lamps), ambient, **_camera(rng, 0.12, 0.25, (0.006, 0.02)))


def _torch(rng: np.random.Generator) -> Light:
    """A lamp beside the camera in the dark: headlights, a flash."""
    above = _tint(rng, 0.07, 0.085, 0.12)
    at = (rng.normal(0, 0.8), -0.3, rng.uniform(0.8, 2.2))
    aim = (rng.normal(0, 1.0), 5.0, rng.uniform(0.5, 1.5))
    lamps = _lamp(rng, at, aim, rng.uniform(0.5, 0.8), _tint(rng, *WHITE), rng.uniform(4.0, 8.0))
    ambient = np.concatenate([above, above * 0.7, above * 0.8])
    return Light("torch", lamps, ambient, **_camera(rng, 0.15, 0.3, (0.005, 0.018)))


def _ceiling(rng: np.random.Generator) -> Light:
    """A room by one or two lamps under its ceiling."""
    ambient = np.concatenate([_tint(rng, 0.4, 0.37, 0.32), _tint(rng, 0.33, 0.3, 0.26), np.zeros(3)])
    lamps = []
    for _ in range(int(rng.integers(1, 3))):
        at = (rng.uniform(-1.8, 1.8), rng.uniform(0.5, 5), rng.uniform(2.0, 2.6))
        lamps.append(_lamp(rng, at, (at[0], at[1], 0), -2.0, _tint(rng, 1.2, 1.05, 0.8), rng.uniform(2.5, 5)))
    return Light("ceiling", np.concatenate(lamps), ambient, **_camera(rng, 0.25, 0.5, (0.004, 0.014)))


def _window(rng: np.random.Generator) -> Light:
    """A room by the sun and the sky through the glass of its roof."""
    lit = _day(rng)
    return replace(lit, kind="window", ambient=lit.ambient * 0.8)


def _dusk(rng: np.random.Generator) -> Light:
    """A room at night: one weak lamp."""
    above = _tint(rng, 0.07, 0.075, 0.1)
    at = (rng.uniform(-2, 2), rng.uniform(1, 5), rng.uniform(0.8, 2.2))
    aim = (at[0] + rng.normal(0, 1), at[1] + rng.normal(0, 1), 0.5)
    lamps = _lamp(rng, at, aim, rng.uniform(-2, 0.2), _tint(rng, 1.4, 0.95, 0.5), rng.uniform(1.5, 3.0))
    return Light("dusk", lamps, np.concatenate([above, above, above]), **_camera(rng, 0.13, 0.27, (0.006, 0.02)))


Kind = tuple[float, Callable[[np.random.Generator], Light]]
OUTDOORS: tuple[Kind, ...] = ((0.36, _day), (0.16, _evening), (0.22, _overcast), (0.2, _night), (0.06, _torch))
INDOORS: tuple[Kind, ...] = ((0.4, _ceiling), (0.4, _window), (0.2, _dusk))
"""Kinds of light with their shares."""


# ---------------------------------------------------------------------------------------------------------- a picture


def taken(light: Light, sensor: float) -> Light:
    """The same light by a camera with `sensor` times the vignette, blur and noise."""
    return replace(
        light, vignette=min(light.vignette * sensor, 1.0), blur=light.blur * sensor, grain=light.grain * sensor
    )


def exposure(radiance: Float[np.ndarray, "h w 3"], light: Light) -> float:
    """The factor that brings a typical pixel, after a tone curve of 1/2.2, near the light's target."""
    luma = radiance.reshape(-1, 3)[:: max(radiance.shape[0] * radiance.shape[1] // 4096, 1)] @ LUMA
    return float(light.target**2.2 / max(float(np.mean(np.sqrt(luma))) ** 2, 1e-9))


def developed(
    radiance: Float[np.ndarray, "h w 3"], light: Light, factor: float, rng: np.random.Generator
) -> Float[np.ndarray, "h w 3"]:
    """A picture in [0, 1] as float32: blur, exposure, cast, veil, vignette, shoulder, noise, tone curve."""
    import cv2

    from likewise.pixels import _raycast

    if light.blur > 0.2:
        radiance = cv2.GaussianBlur(radiance, (0, 0), light.blur, borderType=cv2.BORDER_REPLICATE)
    noise = rng.standard_normal(radiance.shape, dtype=np.float32) if light.grain > 0 else np.zeros_like(radiance)
    veil = light.veil * light.target**2.2
    gain = factor * light.cast / (1 + light.veil)
    curve = np.linspace(0, 1, 1024) ** (2 * light.gamma / 2.2)
    picture: Array = _raycast.toned(radiance, gain, veil, light.vignette, 0.5 * light.grain, noise, curve)
    return picture
