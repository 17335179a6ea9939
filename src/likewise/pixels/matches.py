"""Matches that can be asked for the geometry behind them, and kept in files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likewise import media, types
from likewise.errors import FileError, InputError
from likewise.pixels import robust
from likewise.pixels.robust import Model, Pose

Size = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Matches(types.Matches):
    """Matches a ↔ b (n, 2) with their stage and score, which give models, and know why there are none.

    `sizes` are (h, w) of the two pictures where they are known; `reason` says why there is no match, and is empty where
    there is one.
    """

    sizes: tuple[Size, Size] | None = None
    reason: str = ""

    def __init__(
        self,
        a: Any,
        b: Any,
        stage: Any = None,
        score: Any = None,
        *,
        sizes: tuple[Size, Size] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(a, b, stage, score)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "reason", reason if len(self) == 0 else "")

    # ── geometry ──────────────────────────────────────────────────────────────────────────────────────────────────

    def homography(self, px: float = 3.0, *, seed: int = robust.SEED) -> Model:
        """H, for a plane or a camera that only turned: .matrix, .inliers, .n, .reason."""
        return robust.homography(self.a, self.b, px, seed=seed)

    def fundamental(self, px: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """F, for cameras of which nothing is known."""
        return robust.fundamental(self.a, self.b, px, seed=seed)

    def geometry(self, plane: float = 3.0, line: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """H or F, whichever more matches agree with (F must find a fifth more): .kind says which."""
        return robust.geometry(self.a, self.b, plane, line, seed=seed)

    def essential(self, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """E, for cameras Ka and Kb (3, 3)."""
        return robust.essential(self.a, self.b, Ka, Kb, px, seed=seed)

    def pose(self, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = robust.SEED) -> Pose:
        """R, t with X_b = R X_a + t, t of unit length, for cameras Ka and Kb (3, 3)."""
        return robust.pose(self.a, self.b, Ka, Kb, px, seed=seed)

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, which: ArrayLike) -> Matches:
        """These matches, by a mask (n,) or by their places."""
        some = super().take(which)
        reason = self.reason or "none of the matches was chosen"
        return Matches(some.a, some.b, some.stage, some.score, sizes=self.sizes, reason=reason)

    def stage1(self) -> Matches:
        """The matches that were found near the flow."""
        return self.take(self.stage == 1)

    def to_dict(self) -> dict[str, Any]:
        """A summary as plain Python values."""
        sizes = None if self.sizes is None else [list(s) for s in self.sizes]
        return super().to_dict() | {"sizes": sizes, "reason": self.reason}

    def __repr__(self) -> str:
        return super().__repr__() if len(self) else f"Matches(none: {self.reason or 'empty'})"

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str], *, names: tuple[str, str] = ("a.jpg", "b.jpg")) -> Path:
        """Write the matches: .npz (arrays), .txt (COLMAP's match list), or .db (COLMAP's database, pycolmap).

        COLMAP puts the centre of the first pixel at (½, ½), so ½ is added to points there. A .txt names the features by
        number; they are written beside it as COLMAP's feature files, `<name>.txt`, to be imported first. `names` are
        those of the pictures, which COLMAP goes by.
        """
        from likewise.pixels import matchfiles

        suffix = Path(path).suffix.lower()
        if suffix not in (".npz", ".txt", ".db"):
            raise InputError(f"path: expected a name that ends in .npz, .txt or .db, got {os.fspath(path)!r}")
        if suffix == ".npz":
            return matchfiles.write_arrays(path, self)
        write = matchfiles.write_lists if suffix == ".txt" else matchfiles.write_database
        return write(path, [(*names, self)])

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Matches:
        """Matches that were saved as .npz."""
        arrays = media.load_arrays(path)
        missing = {"a", "b", "stage", "score"} - set(arrays)
        if missing:
            raise FileError(f"{path}: not a file of matches; it lacks {', '.join(sorted(missing))}")
        sizes = arrays.get("sizes")
        known = sizes is not None and sizes.shape == (2, 2) and sizes.dtype.kind in "iu"
        kept = tuple((int(h), int(w)) for h, w in sizes) if known and sizes is not None else None
        reason = str(arrays["reason"]) if "reason" in arrays else ""
        return cls(*(arrays[n] for n in ("a", "b", "stage", "score")), sizes=kept, reason=reason)  # type: ignore[arg-type]


def none(reason: str, sizes: tuple[Size, Size] | None = None) -> Matches:
    """No matches, and why."""
    return Matches(np.empty((0, 2)), np.empty((0, 2)), sizes=sizes, reason=reason)
