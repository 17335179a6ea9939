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
        folders = [Path(folder) for folder in self.folders if "://" not in folder]
        for path in (*folders, *self.runs, *([] if self.real is None else [self.real])):
            if not path.is_dir():
                raise FileError(f"{path}: is a file; name its folder" if path.exists() else f"{path}: no such folder")
        if self.generator is not None and not _may_be_a_generator(self.generator):
            raise FileError(f"{self.generator}: no such file, and not the module:attribute of a generator")


def _may_be_a_generator(name: str) -> bool:
    """Whether it is shipped, or a file, or could be in a module, which is not imported yet."""
    from likewise.distributions.shipped import GENERATORS

    return name in GENERATORS or ":" in name or Path(name).is_file()
