"""What a stopped fit left on disk: its finished parts, a file each, so that the next one goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from likewise.errors import FileError
from likewise.sets.learning import Kept
from likewise.sets.transport.solvers import pack
from likewise.store import checkpoint
from likewise.types import Signature

NO_MATTER = ("n_jobs", "verbose", "n_neighbors")
"""Options that leave what is learned as it is."""


def fit_key(sets: Sequence[Signature], labels: Any, options: dict[str, Any]) -> str:
    """A digest of all that decides what a fit learns: points, weights, labels, levels, options and this version."""
    from likewise import __version__

    packed = pack(sets)
    arrays = {"points": packed.points, "weights": packed.weights, "offsets": packed.offsets}
    header = {
        "labels": [str(label) for label in np.asarray(labels).tolist()],
        "levels": [str(s.level) for s in sets],
        "options": {k: v for k, v in options.items() if k not in NO_MATTER},
        "likewise": __version__,
    }
    return hashlib.sha256(checkpoint.encode(arrays, header)).hexdigest()


class Parts:
    """A folder of finished parts, for `WassersteinLMNN.fit(remember=)`; fits of other keys have their own in it."""

    def __init__(self, folder: str | Path, key: str) -> None:
        self.folder = Path(folder)
        self.own = self.folder / key[:16]
        self.found: list[str] = []
        """names of the parts that were there already"""

    def __call__(self, name: str, make: Callable[[], Kept]) -> Kept:
        """What was kept under this name; else it is made and kept. A damaged file is made again."""
        file = self.own / f"{name}.safetensors"
        try:
            kept = checkpoint.read(file)
        except FileError:
            self.own.mkdir(parents=True, exist_ok=True)
            made = make()
            checkpoint.write(file, *made)
            return made
        self.found.append(name)
        return kept
