"""compare(a, b): how alike two pictures are, as a distance between their embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from likewise.errors import ShapeError
from likewise.images import data, model
from likewise.types import Comparison

if TYPE_CHECKING:
    from likewise.images.data import Picture

SHOWN = 512
"""The longest side, in pixels, at which a comparison keeps its two pictures."""


class Embeds(Protocol):
    """Anything that turns pictures into rows: `likewise.images.default()`, or a model of one's own."""

    def embed(self, images: Any, /) -> Any:
        """One row a picture."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageComparison(Comparison):
    """Two pictures and the distance ‖x − y‖ between their unit rows: 0 (same) to 2 (opposite), √(2 − 2 cosine).

    `pictures` are small copies of the two, which `plot` shows side by side.
    """

    cosine: float
    names: tuple[str, str]
    model: str
    pictures: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] = field(repr=False)

    def __repr__(self) -> str:
        a, b = (Path(n).name for n in self.names)
        return f"ImageComparison(distance={self.distance:.3g}, {a} ↔ {b}, {self.model})"

    def to_dict(self) -> dict[str, Any]:
        """Distance, cosine, the two names and the model's name."""
        a, b = self.names
        return {
            "level": "images",
            "distance": self.distance,
            "cosine": self.cosine,
            "a": a,
            "b": b,
            "model": self.model,
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """The two pictures side by side under their distance; with `path`, also written there. A matplotlib Figure."""
        from matplotlib.figure import Figure

        from likewise.plot import save

        figure = Figure(figsize=(8, 4.2), layout="constrained")
        for axes, shown, name in zip(figure.subplots(1, 2), self.pictures, self.names, strict=True):
            axes.imshow(shown)
            axes.set_title(Path(name).name, fontsize=9, parse_math=False)
            axes.set_axis_off()
        figure.suptitle(f"distance {self.distance:.3f}  (cosine {self.cosine:.3f}, {self.model})", fontsize=11)
        if path is not None:
            save(figure, path, dpi=120)
        return figure


def compare(a: Picture, b: Picture, *, model: Embeds | None = None) -> ImageComparison:
    """How alike two pictures are: ‖x − y‖ of their unit rows under `model`, by default `likewise.images.default()`."""
    embedder = _default() if model is None else model
    arrays = [data.picture(a, where="a"), data.picture(b, where="b")]
    x, y = _unit_rows(embedder, arrays)
    return ImageComparison(
        distance=float(np.linalg.norm(x - y)),
        cosine=float(np.clip(x @ y, -1.0, 1.0)),
        names=(_name(a, "a"), _name(b, "b")),
        model=str(getattr(embedder, "name", type(embedder).__name__)),
        pictures=(data.thumbnail(arrays[0], SHOWN), data.thumbnail(arrays[1], SHOWN)),
    )


def _default() -> Embeds:
    return model.default()


def _name(item: Picture, otherwise: str) -> str:
    return data.name_of(item) or otherwise


def _unit_rows(embedder: Embeds, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    rows = np.asarray(embedder.embed(arrays), dtype=np.float64)
    if rows.ndim != 2 or len(rows) != 2:
        raise ShapeError(f"model: its embed gave shape {rows.shape} for two pictures; expected (2, d)")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, np.finfo(np.float64).tiny))
