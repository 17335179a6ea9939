"""Everything that one server holds: the pictures, the queue, and what stands behind each tab."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from likewise.studio.given import Given
from likewise.studio.jobs import Jobs
from likewise.studio.pixels import Pixels
from likewise.studio.sets import Sets
from likewise.studio.store import Store

EXTRAS = {"video": "av", "sfm": "pycolmap", "cluster": "dask", "milvus": "pymilvus", "features": "kornia"}


class Session:
    """The state of a server; `close` lets go of all of it."""

    def __init__(self, given: Given | None = None, *, cache: Path | None = None) -> None:
        self.given = given or Given()
        self.store, self.jobs = Store(), Jobs()
        self.pixels = Pixels(self.store)
        self.sets = Sets(self.store, cache)

    def about(self) -> dict[str, Any]:
        """Version, threads, extras that are installed, and what was given."""
        from importlib.metadata import version

        import torch

        return {
            "version": version("likewise"),
            "threads": torch.get_num_threads(),
            "extras": {name: find_spec(package) is not None for name, package in EXTRAS.items()},
            "folders": [os.path.basename(os.path.normpath(f)) for f in self.given.folders],
            "runs": len(self.given.runs),
        }

    def close(self) -> None:
        """Cancel what runs and remove the session's folder."""
        self.jobs.close()
        self.store.close()
