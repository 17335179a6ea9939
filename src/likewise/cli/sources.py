"""What a path on the command line stands for: one set, or a collection of sets, read through the library's door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from likewise.cli.terminal import tell_left_out
from likewise.errors import FileError, LikewiseError

if TYPE_CHECKING:
    from likewise.sets.data import SetCollection
    from likewise.types import Signature

FEATURES = ("embed", "pixels", "lbp")
"""embed: 1280 numbers of a network; pixels: the image, grey, 20 × 20; lbp: 8 × 8 histograms of local patterns."""


@dataclass
class Reader:
    """Turns paths into signatures: how images are described, how many centres, each which frame of a video."""

    features: str = "embed"
    k: int | None = 8
    every: int = 1
    seed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def one(self, path: str | Path | Sequence[Path]) -> Signature:
        """The set at a path: a folder of images, a video, an image, or an .npz (file.npz#name for one of many)."""
        from likewise.sets.data import describe

        options = {"every": self.every, "seed": self.seed, "skipped": self.skipped}
        return describe(path, self.features, self.k, on_error="skip", **options)  # type: ignore[arg-type]

    def many(self, path: str | Path) -> SetCollection:
        """The sets at a path: class/object/images, object/images, class/videos, or an .npz of many sets."""
        from likewise.sets.data import list_sets, read_sets
        from likewise.store.run import progress

        if not Path(path).exists():
            raise FileError(f"{path}: no such file or folder")
        total = 0 if Path(path).is_file() else len(list_sets(path)[0])
        with progress(total, "reading sets") as advance:
            sets = read_sets(
                path, self.features, self.k, every=self.every, seed=self.seed, on_error="skip", progress=advance
            )
        self.skipped += sets.skipped
        return sets

    def pictures(self, paths: Sequence[Path]) -> Signature | None:
        """The signature of some image files; None where none can be read."""
        try:
            return self.one(list(paths))
        except LikewiseError:
            return None

    def tell(self) -> None:
        """Say on stderr what was left out."""
        tell_left_out(self.skipped)

    def left_out(self) -> list[dict[str, str]]:
        """What was left out, for a JSON file."""
        return [{"name": name, "reason": reason} for name, reason in self.skipped]
