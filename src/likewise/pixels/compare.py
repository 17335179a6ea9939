"""compare(a, b): where every pixel of a went in b, and how far it misses its place when it comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise import inputs, media, plot
from likewise.pixels.aligner import Aligned, check_image, default
from likewise.pixels.geometry import warp
from likewise.types import Comparison, Flow

ALPHA, BETA = 3.0, 0.05
"""The round trip's tolerance max(α px, β‖f‖), as the adaptive cycle loss has it [LIFE §3.1]."""


class Aligns(Protocol):
    """Anything that gives both flows between two images: `default()`, a RAFT, a model of one's own."""

    def both(self, a: Any, b: Any, /) -> tuple[Any, Any]:
        """The flows a→b (h, w, 2) and b→a (h2, w2, 2)."""


@dataclass(frozen=True, eq=False, repr=False)
class PixelComparison(Comparison):
    """Two images and the flow between them.

    Attributes
    ----------
    distance : float
        The median of ‖x − f_ba(f_ab(x))‖, the round-trip error in pixels, over those pixels of both images that the
        other one shows; where it shows none, the length of its diagonal.
    flow, back : Flow
        From a to b, and from b to a.
    cycle_error : array (h, w)
        The round-trip error d of each pixel of a; where one homography stands for the flow, that of the flow it was
        fitted to, or the distance between the two, whichever is more.
    confidence : array (h, w)
        exp(−(d / max(α, β‖f‖))²) inside b and 0 outside, with α = 3 px and β = 0.05.
    names, model, steps
        What the images and the model are called, and what the model did.
    images : tuple of two arrays (h, w, 3)
        Both images as uint8.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> comparison = lw.pixels.compare(*samples.pair())
    >>> comparison.distance < 3, comparison.warp().shape == comparison.images[0].shape
    (True, True)
    """

    flow: Flow
    back: Flow
    cycle_error: NDArray[np.float32]
    confidence: NDArray[np.float32]
    names: tuple[str, str]
    model: str
    steps: tuple[str, ...] = ()
    images: tuple[NDArray[np.uint8], NDArray[np.uint8]] = field(repr=False, default=None)  # type: ignore[assignment]

    def __repr__(self) -> str:
        a, b = (Path(n).name for n in self.names)
        share = f"round trip consistent for {self.cycle_consistency:.0%}"
        return f"PixelComparison(distance={self.distance:.3g} px, {a} → {b}, {share}, {self.model})"

    @property
    def cycle_consistency(self) -> float:
        """The share of a's pixels that are inside b and return to their place, to max(3 px, 5 % of their way)."""
        return float((self.confidence >= np.exp(-1.0)).mean())

    def warp(self) -> NDArray[np.uint8]:
        """b warped to a: (h, w, 3); black where a's pixels lie outside b."""
        b = torch.from_numpy(self.images[1]).permute(2, 0, 1)[None].float()
        warped = warp(b, torch.from_numpy(np.asarray(self.flow))[None])
        return np.asarray(warped[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())

    def to_dict(self) -> dict[str, Any]:
        """Distance, cycle consistency, sizes and how far pixels move; the flow itself goes to a flow file."""
        length = np.linalg.norm(np.asarray(self.flow), axis=-1)
        a, b = self.names
        return {
            "level": "pixels",
            "distance": self.distance,
            "cycle_consistency": self.cycle_consistency,
            "confidence": float(self.confidence.mean()),
            "motion": {"median": float(np.median(length)), "largest": float(length.max())},
            "a": a,
            "b": b,
            "size_a": list(self.images[0].shape[:2]),
            "size_b": list(self.images[1].shape[:2]),
            "model": self.model,
            "steps": list(self.steps),
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """a, b, b warped to a, a checkerboard of both, the flow and the confidence. A matplotlib Figure."""
        title = f"round-trip error {self.distance:.2f} px, consistent for {self.cycle_consistency:.0%} of a"
        a, b = (Path(name).name for name in self.names)
        figure = plot.alignment(*self.images, self.flow, self.confidence, names=(a, b), title=title)
        if path is not None:
            with media.atomic(path) as sibling:
                figure.savefig(sibling, dpi=110)
        return figure


def compare(a: Any, b: Any, *, model: Aligns | None = None) -> PixelComparison:
    """Where every pixel of a went in b.

    Parameters
    ----------
    a, b : image
        In any form that `likewise.inputs` takes, of any two sizes of at least 64 pixels.
    model : object with .both(a, b), optional
        What gives the flows; by default `likewise.pixels.default()`.

    Returns
    -------
    PixelComparison
        With `.flow`, `.confidence`, `.distance`, `.cycle_consistency`, `.warp()` and `.plot()`.

    Raises
    ------
    InputError
        Where an image is too small, blank, or none at all.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> a, b = samples.pair()
    >>> lw.pixels.compare(a, b).distance < 3
    True
    """
    aligner: Any = default() if model is None else model
    given = inputs.image(a, where="a"), inputs.image(b, where="b")
    one, two = check_image(given[0], "a"), check_image(given[1], "b")
    aligned = aligner.align(one, two) if hasattr(aligner, "align") else Aligned(*aligner.both(one, two))
    return PixelComparison(
        distance=_distance(aligned),
        flow=Flow(aligned.ab.numpy()),
        back=Flow(aligned.ba.numpy()),
        cycle_error=aligned.errors()[0].numpy().astype(np.float32),
        confidence=_confidence(aligned),
        names=(given[0].name or "a", given[1].name or "b"),
        model=str(getattr(aligner, "name", type(aligner).__name__)),
        steps=aligned.steps,
        images=(_eight_bit(one), _eight_bit(two)),
    )


def _confidence(aligned: Aligned) -> NDArray[np.float32]:
    d, kept = aligned.errors()
    limit = (BETA * torch.linalg.vector_norm(aligned.ab, dim=-1)).clamp_min(ALPHA)
    confidence = torch.where(kept, torch.exp(-((d / limit) ** 2)), torch.zeros_like(d))
    return confidence.numpy().astype(np.float32)


def _distance(aligned: Aligned) -> float:
    """The median round-trip error of what both images show."""
    errors = torch.cat([d[kept] for d, kept in (aligned.errors(), aligned.swapped().errors())])
    if not len(errors):
        return float(np.hypot(*aligned.ba.shape[:2]))
    return float(errors.double().median())


def _eight_bit(x: Tensor) -> NDArray[np.uint8]:
    return np.asarray((x.permute(1, 2, 0) * 255).round().byte().numpy())
