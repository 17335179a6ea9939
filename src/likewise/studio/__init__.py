"""A local page for all four levels: FastAPI on 127.0.0.1, behind an unguessable address.

security   token, Host, Origin, headers          uploads   files that come in, counted and judged
jobs       one worker, a queue, NDJSON streams   store     the session's pictures and files
asked      what a request may ask for            app       the routes
pixels, images, sets, distributions, runs        what stands behind each tab
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from likewise.errors import MissingExtra

if TYPE_CHECKING:
    from likewise.studio.given import Given

__all__ = ["serve"]


def serve(given: Given | None = None, *, port: int = 0, open_browser: bool = True) -> None:
    """Serve the studio on 127.0.0.1 until it is interrupted; prints its address on one line."""
    for package in ("fastapi", "uvicorn"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "studio") from None
    from likewise.studio import serving

    serving.run(given, port=port, open_browser=open_browser)
