"""Pairs of photos of one place with their fundamental matrices, as structure from motion leaves them: LIFE's training
data, drawn in batches of any size."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Size: TypeAlias = tuple[int, int]

FIELDS = {"a": "i", "b": "i", "F": "f", "Ka": "f", "Kb": "f", "R": "f", "t": "f", "overlap": "i", "angle": "f",
          "centre_a": "f", "centre_b": "f"}  # fmt: skip
KEPT = 256
"""Decoded photos that stay in memory."""


@dataclass(frozen=True)
class Views:
    """Pictures a, b (n, 3, h, w) in [0, 1] and F (n, 3, 3) float64 of unit norm with [y, 1] F [x, 1]ᵀ = 0."""

    a: Float[Tensor, "n 3 h w"]
    b: Float[Tensor, "n 3 h w"]
    F: Float[Tensor, "n 3 3"]


class Pairs:
    """Pairs of undistorted photos in a folder that `reconstruct` made.

    names[a[k]] and names[b[k]] are the photos of pair k; F, Ka, Kb, R, t (X_b = R X_a + t) are for their full size;
    overlap (k,) counts the points of the place that both show, angle (k,) is the median angle in degrees under which
    these see the two cameras; centre_a, centre_b (k, 2) are the medians of these points in the photos.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str], arrays: dict[str, NDArray[Any]]) -> None:
        self.folder, self.names = Path(folder), tuple(names)
        _check(arrays, len(self.names), str(self.folder))
        self.arrays = arrays
        self._photos: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    @classmethod
    def open(cls, out: str | os.PathLike[str]) -> Pairs:
        """The pairs in a folder."""
        arrays = media.load_arrays(Path(out) / "pairs.npz")
        names = arrays.pop("names", np.empty(0, dtype="U1"))
        if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
            raise FileError(f"{out}/pairs.npz: holds no names of photos")
        if any(Path(n).name != n or n.startswith(".") for n in names.tolist()):
            raise FileError(f"{out}/pairs.npz: a name leads out of the folder")
        return cls(out, names.tolist(), arrays)

    def __len__(self) -> int:
        return len(self.arrays["F"])

    def __repr__(self) -> str:
        return f"Pairs({len(self)} of {len(self.names)} photos in {self.folder})"

    def path(self, photo: int) -> Path:
        """The file of a photo by its number."""
        return self.folder / "images" / self.names[photo]

    def __call__(self, n: int, size: Size, seed: int | Sequence[int]) -> Views:
        """The same as `views`."""
        return self.views(n, size, seed)

    def views(self, n: int, size: Size, seed: int | Sequence[int]) -> Views:
        """n random pairs, half of them the other way round, cut to the proportions of `size` (h, w) around what both
        show, and resized to it; a function of the seed alone. F goes along by the half-pixel rule."""
        import torch

        if n < 1 or len(size) != 2 or min(size) < 8:
            raise InputError(f"n, size: expected n ≥ 1 and (h, w) of 8 px at least, got {n} and {tuple(size)}")
        rng = np.random.default_rng(seed if isinstance(seed, int) else list(seed))
        made = [self._view(int(k), bool(turn), size) for k, turn in zip(*self._draw(rng, n), strict=True)]
        pictures = [np.stack([m[i] for m in made]).transpose(0, 3, 1, 2) for i in range(2)]
        a, b = (torch.from_numpy(np.ascontiguousarray(p)).float().div_(255) for p in pictures)
        return Views(a, b, torch.from_numpy(np.stack([m[2] for m in made])))

    def _draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return rng.integers(len(self), size=n), rng.integers(2, size=n)

    def _view(self, k: int, turned: bool, size: Size) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
        ends = ("b", "a") if turned else ("a", "b")
        F = self.arrays["F"][k].T if turned else self.arrays["F"][k]
        cut = [_window(self.photo(int(self.arrays[e][k])), self.arrays[f"centre_{e}"][k], size) for e in ends]
        (a, Sa), (b, Sb) = cut
        moved = np.linalg.inv(Sb).T @ F @ np.linalg.inv(Sa)
        return a, b, moved / np.linalg.norm(moved)

    def photo(self, number: int) -> NDArray[np.uint8]:
        """A photo (h, w, 3) by its number, the last few kept in memory."""
        if number not in self._photos:
            self._photos[number] = media.read_array(self.path(number))
            if len(self._photos) > KEPT:
                self._photos.popitem(last=False)
        self._photos.move_to_end(number)
        return self._photos[number]


def _window(photo: NDArray[np.uint8], centre: Floats, size: Size) -> tuple[NDArray[np.uint8], Floats]:
    """The largest piece with the proportions of `size`, as near to `centre` as the frame allows, resized, and the map
    p ↦ (p − corner + ½) s − ½ of points as a matrix (3, 3)."""
    import cv2

    whole = photo.shape[:2]
    share = min(whole[0] / size[0], whole[1] / size[1])
    h, w = (min(m, max(1, round(share * n))) for n, m in zip(size, whole, strict=True))
    left, top = (
        int(np.clip(round(c - n / 2), 0, m - n)) for c, n, m in ((centre[0], w, whole[1]), (centre[1], h, whole[0]))
    )
    shrinking = h >= size[0]
    piece = cv2.resize(
        photo[top : top + h, left : left + w],
        (size[1], size[0]),
        interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR,
    )
    sx, sy = size[1] / w, size[0] / h
    rows = [[sx, 0.0, (0.5 - left) * sx - 0.5], [0.0, sy, (0.5 - top) * sy - 0.5], [0.0, 0.0, 1.0]]
    return np.asarray(piece), np.array(rows)


def _check(arrays: dict[str, NDArray[Any]], photos: int, where: str) -> None:
    """A FileError unless every field is there, as long as F, finite, and names photos that exist."""
    missing = set(FIELDS) - set(arrays)
    if missing:
        raise FileError(f"{where}: its pairs lack {', '.join(sorted(missing))}")
    k = len(arrays["F"])
    shapes = {"F": (3, 3), "Ka": (3, 3), "Kb": (3, 3), "R": (3, 3), "t": (3,), "centre_a": (2,), "centre_b": (2,)}
    for name, kind in FIELDS.items():
        array = arrays[name]
        if array.shape != (k, *shapes.get(name, ())) or array.dtype.kind not in kind or not np.isfinite(array).all():
            raise FileError(f"{where}: {name} of its pairs is damaged ({array.dtype} {array.shape})")
    if k == 0:
        raise FileError(f"{where}: holds no pair of photos that show the same points")
    ends = np.concatenate([arrays["a"], arrays["b"]])
    if ends.min() < 0 or ends.max() >= photos:
        raise FileError(f"{where}: a pair names a photo that is not there")
