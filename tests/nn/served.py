"""Small files of "published weights" on a server on loopback that can cut, stall, redirect and forget ranges."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likewise.nn import published
from likewise.nn.published import Published

BODY = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
ENTRY = Published("tiny", "tiny.pt", "nothing", "MIT", SHA256, len(BODY))
"""What the server has; its URL is known once the server runs."""


@dataclass
class Served:
    """How the server behaves, and what it was asked."""

    url: str = ""
    body: bytes = BODY
    ranges: bool = True
    length: bool = True
    cuts: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers is cut."""
    stalls_at: int | None = None
    status: int = 200
    location: str | None = None
    asked: list[str | None] = field(default_factory=list)
    """The ranges of all requests so far."""
    go_on: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        s = self.served
        asked = self.headers.get("Range")
        s.asked.append(asked)
        self.close_connection = True
        if s.location and self.path == "/tiny.pt":
            return self._head(302, {"Location": s.location, "Content-Length": "0"})
        if s.status != 200:
            return self._head(s.status, {"Content-Length": "0"})
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and s.ranges else 0
        if start >= len(s.body):
            return self._head(416, {"Content-Length": "0"})
        rest = s.body[start:]
        headers = {"Content-Length": str(len(rest))} if s.length else {}
        if asked and s.ranges:
            headers["Content-Range"] = f"bytes {start}-{len(s.body) - 1}/{len(s.body)}"
        self._head(206 if asked and s.ranges else 200, headers)
        if s.stalls_at is not None:
            self.wfile.write(rest[: s.stalls_at])
            self.wfile.flush()
            s.go_on.wait(30)
            rest = rest[s.stalls_at :]
        with suppress(OSError):  # the client was killed
            self.wfile.write(rest[: s.cuts.pop(0)] if s.cuts else rest)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[Served]:
    served = Served()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"served": served}))
    served.url = f"http://127.0.0.1:{server.server_port}/tiny.pt"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def own_places(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Caches of a test's own, no folder of weights, no proxy, no licence told yet; returns likewise's cache."""
    monkeypatch.setenv("LIKEWISE_CACHE", str(folder / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("LIKEWISE_WEIGHTS", raising=False)
    monkeypatch.setattr(published, "_told", set())
    return folder / "cache" / "weights"


def publish(monkeypatch: pytest.MonkeyPatch, *entries: Published, **changes: Any) -> Published:
    """Only these are published, or ENTRY with changes."""
    entries = entries or (replace(ENTRY, **changes),)
    monkeypatch.setattr(published, "ENTRIES", entries)
    monkeypatch.setattr(published, "PUBLISHED", {e.name: e for e in entries})
    return entries[0]
