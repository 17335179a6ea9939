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
from likewise.pixels.life import ALPHA, BETA
from likewise.types import Comparison, Flow

LEAST = 0.01
"""The share of a's pixels that must be sure for the two images to count as aligned."""


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
        The median of ‖x − f_ba(f_ab(x))‖, the round-trip error in pixels, over the pixels of both images that are
        sure; where nothing is aligned, the length of b's diagonal.
    flow, back : Flow
        From a to b, and from b to a.
    cycle_error : array (h, w)
        The round-trip error d of each pixel of a; where one homography stands for the flow, that of the flow it was
        fitted to, or the distance between the two, whichever is more.
    confidence : array (h, w)
        The probability that a pixel's flow is within 3 px of the truth (at the 480 px at which images are aligned);
        0 outside b. Of models other than the aligner exp(−(d / max(3 px, 5 % of the way))²).
    reason : str
        Why there is no alignment; empty where there is one.
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
    reason: str = ""
    images: tuple[NDArray[np.uint8], NDArray[np.uint8]] = field(repr=False, default=None)  # type: ignore[assignment]

    def __repr__(self) -> str:
        a, b = (Path(n).name for n in self.names)
        share = f"no alignment: {self.reason}" if self.reason else f"{self.aligned:.0%} of {a} aligned"
        return f"PixelComparison(distance={self.distance:.3g} px, {a} → {b}, {share}, {self.model})"

    @property
    def aligned(self) -> float:
        """The share of a's pixels that are sure: their confidence is one half at least."""
        return float((self.confidence >= 0.5).mean())

    @property
    def cycle_consistency(self) -> float:
        """The share of a's pixels that are inside b and return to their place, to max(3 px, 5 % of their way)."""
        flow = np.asarray(self.flow)
        h, w = flow.shape[:2]
        ends = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1) + flow
        kept = ((ends >= -0.5) & (ends <= np.array(self.images[1].shape[1::-1]) - 0.5)).all(-1)
        limit = np.maximum(ALPHA, BETA * np.linalg.norm(flow, axis=-1))
        return float((kept & (self.cycle_error <= limit)).mean())

    def warp(self, *, least: float = 0.5) -> NDArray[np.uint8]:
        """b warped to a: (h, w, 3); black where a's pixels lie outside b or are less sure than `least`, and where
        there is no alignment."""
        b = torch.from_numpy(self.images[1]).permute(2, 0, 1)[None].float()
        warped = warp(b, torch.from_numpy(np.asarray(self.flow))[None])
        pixels = warped[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()
        return np.where(((self.confidence >= least) & (not self.reason))[..., None], pixels, np.uint8(0))

    def to_dict(self) -> dict[str, Any]:
        """Distance, cycle consistency, sizes and how far pixels move; the flow itself goes to a flow file."""
        length = np.linalg.norm(np.asarray(self.flow), axis=-1)
        a, b = self.names
        return {
            "level": "pixels",
            "distance": self.distance,
            "aligned": self.aligned,
            "reason": self.reason,
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
        title = f"round-trip error {self.distance:.2f} px, {self.aligned:.0%} of a aligned"
        title = f"no alignment: {self.reason}" if self.reason else title
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
    aligned = aligner.align(*given) if hasattr(aligner, "align") else Aligned(*aligner.both(one, two))
    confidences = aligned.confidences()
    reason = ""
    if float((confidences[0] >= 0.5).float().mean()) < LEAST:
        why = "too few matches agree on a geometry" if "matches" not in aligned.steps else "what agrees is not sure"
        reason = f"{why}, and less than {LEAST:.0%} of a's pixels are sure of their place"
    return PixelComparison(
        distance=_distance(aligned, confidences, bool(reason)),
        flow=Flow(aligned.ab.numpy()),
        back=Flow(aligned.ba.numpy()),
        cycle_error=aligned.errors()[0].numpy().astype(np.float32),
        confidence=confidences[0].numpy().astype(np.float32),
        names=(given[0].name or "a", given[1].name or "b"),
        model=str(getattr(aligner, "name", type(aligner).__name__)),
        steps=aligned.steps,
        reason=reason,
        images=(_eight_bit(one), _eight_bit(two)),
    )


def _distance(aligned: Aligned, confidences: tuple[Tensor, Tensor], nothing: bool) -> float:
    """The median round-trip error of what is sure; b's diagonal where there is nothing."""
    ways = zip((aligned, aligned.swapped()), confidences, strict=True)
    errors = torch.cat([way.errors()[0][sure >= 0.5] for way, sure in ways])
    if nothing or not len(errors):
        return float(np.hypot(*aligned.ba.shape[:2]))
    return float(errors.double().median())


def _eight_bit(x: Tensor) -> NDArray[np.uint8]:
    return np.asarray((x.permute(1, 2, 0) * 255).round().byte().numpy())
