"""A local page for all four levels: Starlette on 127.0.0.1, behind an unguessable address.

app        the routes, the session, the server
requests   token, Host, Origin, headers; what a request may ask for; queues with a worker each, NDJSON streams
uploads    files that come in; session images
api        /api/v1 for other programs, with its OpenAPI document
images: Find, Duplicates, and the evidence of a pair; pixels: Compare; sets: Albums; distributions: Generators; runs
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from likewise.errors import MissingExtra

__all__ = ["serve"]


def serve(
    folders: Sequence[str] = (),
    *,
    runs: Sequence[Path] = (),
    generator: str | None = None,
    real: Path | None = None,
    port: int = 0,
    open_browser: bool = True,
) -> None:
    """Serve the studio on 127.0.0.1 until it is interrupted; prints its address on one line.

    Parameters
    ----------
    folders : sequence of str
        Folders of images, or indexes, that can be searched.
    runs : sequence of Path
        Run directories, or folders of them, to watch.
    generator : str, optional
        A generator of your own: ``module:attribute``, or a file of weights.
    real : Path, optional
        A folder of real images that the generator is measured against.
    port : int
        A port of 127.0.0.1; 0 takes a free one.
    open_browser : bool
        Open the page in a browser.

    Raises
    ------
    MissingExtra
        Starlette or uvicorn is not installed.
    FileError
        A folder or file that was named is not there.

    Examples
    --------
    >>> import likewise.studio
    >>> likewise.studio.serve(["photos/"])  # doctest: +SKIP
    """
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtra(package, "studio")
    from likewise.studio.app import Given, run

    run(Given(folders, runs, generator, real), port=port, open_browser=open_browser)
