"""compare(a, b): how alike two images are, as a distance between their embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from likewise import inputs, plot
from likewise.errors import ShapeError
from likewise.images.embedder import Embedder, Embeds, default
from likewise.nn.backbone import DECODED_SIDE, resize
from likewise.types import Comparison

SHOWN = 512
"""The longest side, in pixels, at which a comparison keeps its two images."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageComparison(Comparison):
    """Two images and the distance between their embeddings: what `lw.images.compare` returns.

    Attributes
    ----------
    distance : float
        ‖x − y‖ of the unit rows: 0 (same) to 2 (opposite), √(2 − 2 cosine).
    cosine : float
        Their cosine similarity.
    names : tuple of str
        What the two are called: their paths, or "a" and "b".
    model : str
        The name of the model.
    images : tuple of arrays (h, w, 3)
        Small copies of the two, which `plot` shows side by side.

    Examples
    --------
    >>> import likewise as lw
    >>> from skimage.data import chelsea
    >>> comparison = lw.images.compare(chelsea(), chelsea()[:, ::-1])
    >>> sorted(comparison.to_dict())
    ['a', 'b', 'cosine', 'distance', 'level', 'model']
    """

    cosine: float
    names: tuple[str, str]
    model: str
    images: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] = field(repr=False)

    def __repr__(self) -> str:
        a, b = (Path(n).name for n in self.names)
        return f"ImageComparison(distance={self.distance:.3g}, {a} ↔ {b}, {self.model})"

    def to_dict(self) -> dict[str, Any]:
        """Distance, cosine, the two names and the model's name."""
        a, b = self.names
        numbers = {"level": "images", "distance": self.distance, "cosine": self.cosine}
        return numbers | {"a": a, "b": b, "model": self.model}

    def plot(self, path: str | Path | None = None) -> Any:
        """The two images side by side under their distance; with `path`, also written there. A matplotlib Figure."""
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        for axes, shown, name in zip(figure.subplots(1, 2), self.images, self.names, strict=True):
            axes.imshow(shown)
            axes.set_title(Path(name).name, fontsize=9, parse_math=False)
            axes.set_axis_off()
        figure.suptitle(f"distance {self.distance:.3f}  (cosine {self.cosine:.3f}, {self.model})", fontsize=11)
        if path is not None:
            plot.save(figure, path, dpi=120)
        return figure


def compare(a: Any, b: Any, *, model: Embeds | None = None, device: str = "cpu") -> ImageComparison:
    """How alike two images are: the distance ‖x − y‖ of their unit rows.

    Parameters
    ----------
    a, b : path, Pillow image, array (h, w, 3), tensor (3, h, w) or Image
        The two. An `Image` remembers its row, so that it is embedded once, however often it is compared.
    model : object with .embed, optional
        By default `lw.images.default()`.
    device : str, default "cpu"
        Where the default model runs.

    Returns
    -------
    ImageComparison
        .distance, .cosine, .plot(), .to_json()

    Raises
    ------
    InputError, FileError
        If one of them is no image, or cannot be read.

    Examples
    --------
    >>> import likewise as lw
    >>> from skimage.data import chelsea, coffee
    >>> cat, cup = chelsea(), coffee()
    >>> lw.images.compare(cat, cat).distance < 1e-3
    True
    >>> lw.images.compare(cat, cat[:, ::-1]).distance < lw.images.compare(cat, cup).distance
    True
    """
    embedder = default(device=device) if model is None else model
    pair = [inputs.image(a, where="a"), inputs.image(b, where="b")]
    arrays = [image.reduced(DECODED_SIDE) for image in pair]
    x, y = _unit_rows(embedder.embed(pair if isinstance(embedder, Embedder) else arrays))
    return ImageComparison(
        distance=float(np.linalg.norm(x - y)),
        cosine=float(np.clip(x @ y, -1.0, 1.0)),
        names=(pair[0].name or "a", pair[1].name or "b"),
        model=str(getattr(embedder, "name", type(embedder).__name__)),
        images=(thumbnail(arrays[0], SHOWN), thumbnail(arrays[1], SHOWN)),
    )


def thumbnail(array: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """The whole image with its longest side at most `side`."""
    height, width = array.shape[:2]
    scale = min(1.0, side / max(height, width))
    return resize(array, (max(1, round(width * scale)), max(1, round(height * scale))))


def _unit_rows(embeddings: Any) -> np.ndarray[Any, Any]:
    rows = np.asarray(embeddings, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != 2:
        raise ShapeError(f"model: its embed gave shape {rows.shape} for two images; expected (2, d)")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, np.finfo(np.float64).tiny))
