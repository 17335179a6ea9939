"""What the command line gives the studio to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from likewise.errors import FileError


@dataclass(frozen=True)
class Given:
    """What the command line named: folders or indexes, run directories, a generator, real pictures."""

    folders: Sequence[str] = ()
    runs: Sequence[Path] = ()
    generator: str | None = None
    real: Path | None = None

    def __post_init__(self) -> None:
        """What is not there is refused before the server begins."""
        for folder in self.folders:
            if "://" not in folder and not Path(folder).is_dir():
                raise FileError(f"{folder}: no such folder")
        for path in (*self.runs, *([] if self.real is None else [self.real])):
            if not path.is_dir():
                raise FileError(f"{path}: no such folder")
