"""Everything that one server holds: the pictures, the queue, and what stands behind each tab."""

from __future__ import annotations

import contextlib
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from likewise.studio.distributions import Distributions
from likewise.studio.given import Given
from likewise.studio.images import Images
from likewise.studio.jobs import Jobs
from likewise.studio.pixels import Pixels
from likewise.studio.runs import Runs
from likewise.studio.sets import Sets
from likewise.studio.store import Store

EXTRAS = {"video": "av", "sfm": "pycolmap", "cluster": "dask", "milvus": "pymilvus", "features": "kornia"}


class Session:
    """The state of a server; `close` lets go of all of it."""

    def __init__(self, given: Given | None = None, *, cache: Path | None = None) -> None:
        self.given, self.closed = given or Given(), False
        self.store, self.jobs = Store(), Jobs()
        self._warming = threading.Thread(target=_warm_up, name="studio-warm-up", daemon=True)
        self.pixels = Pixels(self.store)
        self.images = Images(self.store, self.given.folders, cache)
        self.sets = Sets(self.store, cache)
        self.distributions = Distributions(self.store, self.given.generator, self.given.real, cache)
        self.runs = Runs(self.store, self.given.runs)

    def about(self) -> dict[str, Any]:
        """Version, threads, extras that are installed, and what was given."""
        from importlib.metadata import version

        import torch

        return {
            "version": version("likewise"),
            "threads": torch.get_num_threads(),
            "extras": {name: find_spec(package) is not None for name, package in EXTRAS.items()},
            "folders": [source["name"] for source in self.images.sources()[:-1]],
            "runs": len(self.runs.list()),
        }

    def warm_up(self) -> None:
        """Import and load in the background what the first question would have to wait for."""
        self._warming.start()

    @property
    def busy(self) -> bool:
        """Whether a thread is still at work though the session is closed."""
        return self.closed and (self.jobs.busy or self._warming.is_alive())

    def close(self) -> None:
        """Cancel what runs, end the sample runs, and remove the session's folder; asked twice, it does it once."""
        if not self.closed:
            self.closed = True
            self.jobs.close()
            self.runs.close()
            self.images.close()
            self.store.close()


def _warm_up() -> None:
    """The heavy imports and the networks; what goes wrong here is told to who asks for them."""
    with contextlib.suppress(Exception):
        from likewise import images, pixels

        pixels.default()
        images.default()
