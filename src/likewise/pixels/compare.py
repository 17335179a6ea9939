"""compare(a, b): where every pixel of a went in b, and how far it misses its place when it comes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise import media, plot
from likewise.pixels.aligner import alignable, default
from likewise.pixels.geometry import warp
from likewise.pixels.life.inference import Aligned
from likewise.types import Comparison, Flow


class Aligns(Protocol):
    """Anything that gives both flows between two pictures: `default()`, a RAFT, a model of one's own."""

    def both(self, a: Any, b: Any, /) -> tuple[Any, Any]:
        """The flows a→b (h, w, 2) and b→a (h2, w2, 2)."""


@dataclass(frozen=True, eq=False, repr=False)
class PixelComparison(Comparison):
    """Two pictures and the flow between them.

    `distance` is the median of ‖x − f_ba(f_ab(x))‖, the cycle error in pixels, over those pixels of both pictures that
    the other one shows; where it shows none, the length of its diagonal. `flow` goes from a to b, `back` from b to a;
    `missed` (h, w) is the cycle error d of each pixel of a; where one homography stands for the flow, that of the flow
    it was fitted to, or the distance between the two, whichever is more. `confidence` (h, w) in [0, 1] is
    exp(−(d / max(α, β‖f‖))²) inside b and 0 outside, with α = 3 px and β = 0.05.
    """

    flow: Flow
    back: Flow
    missed: NDArray[np.float32]
    confidence: NDArray[np.float32]
    names: tuple[str, str]
    model: str
    notes: tuple[str, ...] = ()
    pictures: tuple[NDArray[np.uint8], NDArray[np.uint8]] = field(repr=False, default=None)  # type: ignore[assignment]

    def __repr__(self) -> str:
        a, b = (Path(n).name for n in self.names)
        home = f"{self.home:.0%} of a comes home"
        return f"PixelComparison(distance={self.distance:.3g} px, {a} → {b}, {home}, {self.model})"

    @property
    def home(self) -> float:
        """The share of a's pixels that are inside b and come back to their place, to max(3 px, 5 % of their way)."""
        return float((self.confidence >= np.exp(-1.0)).mean())

    def warp(self) -> NDArray[np.uint8]:
        """b brought onto a: (h, w, 3); black where a's pixels lie outside b."""
        b = torch.from_numpy(self.pictures[1]).permute(2, 0, 1)[None].float()
        moved = warp(b, torch.from_numpy(np.asarray(self.flow))[None])
        return np.asarray(moved[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())

    def to_dict(self) -> dict[str, Any]:
        """Distance, how much comes home, sizes and how far pixels move; the flow itself goes to a flow file."""
        length = np.linalg.norm(np.asarray(self.flow), axis=-1)
        a, b = self.names
        return {
            "level": "pixels",
            "distance": self.distance,
            "home": self.home,
            "confidence": float(self.confidence.mean()),
            "motion": {"median": float(np.median(length)), "largest": float(length.max())},
            "a": a,
            "b": b,
            "size_a": list(self.pictures[0].shape[:2]),
            "size_b": list(self.pictures[1].shape[:2]),
            "model": self.model,
            "steps": list(self.notes),
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """a, b, b brought onto a, a checkerboard of both, the flow and the confidence. A matplotlib Figure."""
        title = f"cycle error {self.distance:.2f} px, {self.home:.0%} of a comes home"
        a, b = (Path(name).name for name in self.names)
        figure = plot.alignment(*self.pictures, self.flow, self.confidence, names=(a, b), title=title)
        if path is not None:
            with media.atomic(path) as sibling:
                figure.savefig(sibling, dpi=110)
        return figure


def compare(a: Any, b: Any, *, model: Aligns | None = None) -> PixelComparison:
    """Where every pixel of a went in b under `model`, by default `likewise.pixels.default()`."""
    aligner: Any = default() if model is None else model
    one, two = alignable(a, "a"), alignable(b, "b")
    if hasattr(aligner, "aligned"):
        found: Aligned = aligner.aligned(one, two)
    else:
        found = Aligned(*aligner.both(one, two))
    return PixelComparison(
        distance=_distance(found),
        flow=Flow(found.ab.numpy()),
        back=Flow(found.ba.numpy()),
        missed=found.errors()[0].numpy().astype(np.float32),
        confidence=_confidence(found),
        names=(_name(a, "a"), _name(b, "b")),
        model=str(getattr(aligner, "name", type(aligner).__name__)),
        notes=found.notes,
        pictures=(_eight_bit(one), _eight_bit(two)),
    )


def _confidence(found: Aligned, alpha: float = 3.0, beta: float = 0.05) -> NDArray[np.float32]:
    """exp(−(d / max(α, β‖f‖))²) inside b, 0 outside."""
    d, kept = found.errors()
    limit = (beta * torch.linalg.vector_norm(found.ab, dim=-1)).clamp_min(alpha)
    confidence = torch.where(kept, torch.exp(-((d / limit) ** 2)), torch.zeros_like(d))
    return confidence.numpy().astype(np.float32)


def _distance(found: Aligned) -> float:
    """The median cycle error of what both pictures show."""
    errors = [d[kept] for d, kept in (found.errors(), found.swapped().errors())]
    together = torch.cat(errors)
    if not len(together):
        return float(np.hypot(*found.ba.shape[:2]))
    return float(together.double().median())


def _name(item: Any, otherwise: str) -> str:
    return os.fspath(item) if isinstance(item, str | os.PathLike) else otherwise


def _eight_bit(x: Tensor) -> NDArray[np.uint8]:
    return np.asarray((x.permute(1, 2, 0) * 255).round().byte().numpy())
