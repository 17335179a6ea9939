"""The server: a socket on 127.0.0.1, its address on one line, and an orderly end."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import webbrowser

import uvicorn

from likewise.errors import InputError
from likewise.studio import security
from likewise.studio.app import guarded
from likewise.studio.distributions import hush
from likewise.studio.given import Given
from likewise.studio.session import Session

MOST_CONNECTIONS = 1000
"""Connections that are open at the same time; the guard answers far fewer, this bounds those that say nothing."""
GRACE = 2
"""Seconds that answers under way are given at the end."""
INTERRUPTED = 130


class Server(uvicorn.Server):
    """uvicorn's server, which says where it is once it answers, and ends jobs before it waits for their readers."""

    def __init__(self, config: uvicorn.Config, session: Session, url: str, open_browser: bool) -> None:
        super().__init__(config)
        self.session, self.url, self.open_browser = session, url, open_browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, then print the address."""
        await super().startup(sockets)
        if self.started:
            print(self.url, flush=True)
            self.session.warm_up()
            if self.open_browser:
                threading.Thread(target=webbrowser.open, args=(self.url,), daemon=True).start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every job's stream, so that nobody waits for it; what is cut short from now on is so on purpose."""
        self.session.jobs.stop()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def run(given: Given | None = None, *, port: int = 0, open_browser: bool = True) -> None:
    """Serve until interrupted."""
    listening = bound(port)
    hush()
    session = Session(given)
    try:
        server(session, listening, open_browser=open_browser).run(sockets=[listening])
    finally:
        session.close()
        listening.close()
        if session.busy:  # in the middle of what cannot be interrupted, and nobody wants any more
            sys.stdout.flush()
            os._exit(INTERRUPTED)


def server(session: Session, listening: socket.socket, *, open_browser: bool = False, token: str = "") -> Server:
    """A server for a session on a bound socket."""
    token, port = token or security.token(), int(listening.getsockname()[1])
    config = uvicorn.Config(
        guarded(session, token, port),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
        ws="none",
        lifespan="on",
    )
    return Server(config, session, address(port, token), open_browser)


def address(port: int, token: str) -> str:
    """Where the page is."""
    return f"http://127.0.0.1:{port}/{token}/"


def bound(port: int) -> socket.socket:
    """A socket on 127.0.0.1; port 0 takes a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or Nagle delays answers
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"port: {port} cannot be used: {error.strerror}; leave --port away to take a free one"
        ) from None
    return listening
