"""The studio: its routes, the state that one server holds, and the server itself.

Each route names what it asks a tab for; light ones are answered at once from a few threads, heavy ones are jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from likewise import errors, media
from likewise.errors import FileError, InputError, LikewiseError
from likewise.inputs import GENERATORS
from likewise.studio import api, uploads
from likewise.studio.requests import (
    ENDED,
    UNEXPECTED,
    Guard,
    Jobs,
    Json,
    Stream,
    error_response,
    new_token,
    not_found,
    read_json,
    sentence,
)
from likewise.studio.uploads import ImageStore, SessionImage

PAGE = Path(__file__).parent / "page"
AT_ONCE, SLOW_AT_ONCE = 4, 2
"""Light requests, and slower ones (decoding, grouping), that are worked on at the same time."""
MAX_CONNECTIONS = 1000
"""Connections that are open at the same time; the guard answers far fewer, and bounds those of strangers itself."""
GRACE = 2
"""Seconds that responses under way are given at the end."""
INTERRUPTED = 130


@dataclass(frozen=True)
class Given:
    """What the command line named: folders or indexes, run directories, a generator, a folder of real images."""

    folders: Sequence[str] = ()
    runs: Sequence[Path] = ()
    generator: str | None = None
    real: Path | None = None

    def __post_init__(self) -> None:
        """What is not there is refused before the server begins; a generator's module is not imported yet."""
        folders = [Path(folder) for folder in self.folders if "://" not in folder]
        for path in (*folders, *self.runs, *([] if self.real is None else [self.real])):
            if not path.is_dir():
                raise FileError(f"{path}: is a file; name its folder" if path.exists() else f"{path}: no such folder")
        name = self.generator or ":"
        if name not in GENERATORS and ":" not in name and not Path(name).is_file():
            raise FileError(f"{name}: no such file, and not the module:attribute of a generator")


class Session:
    """Everything that one server holds: the images, two queues, and what stands behind each tab."""

    def __init__(self, given: Given | None = None, *, cache: Path | None = None) -> None:
        self.given, self.closed = given or Given(), False
        self.store, self.jobs, self.long = ImageStore(), Jobs(), Jobs()
        self.cache = _writable((cache or media.cache_folder()) / "studio", self.store.folder)
        self._lock, self._tabs = threading.Lock(), dict[str, Any]()

    def tab(self, name: str) -> Any:
        """What answers a tab. Its level is imported when it is first asked for, so that the page is there at once."""
        with self._lock:
            if name not in self._tabs:
                module = importlib.import_module(f"likewise.studio.{name}")
                self._tabs[name] = module.Tab(self.store, self.cache, self.given)
            return self._tabs[name]

    def close(self) -> None:
        """Cancel what runs, close the tabs, and remove the session's folder; a second call does nothing."""
        if not self.closed:
            self.closed = True
            self.long.stop()
            self.jobs.close()
            self.long.close()
            for tab in self._tabs.values():
                if hasattr(tab, "close"):
                    tab.close()
            self.store.close()


def _writable(wanted: Path, otherwise: Path) -> Path:
    """The user's cache folder, or one of the session where that cannot be written to."""
    with contextlib.suppress(OSError):
        wanted.mkdir(parents=True, exist_ok=True)
    return wanted if os.access(wanted, os.W_OK) else otherwise


# ── routes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def build(session: Session, token: str, port: int, page: Path = PAGE) -> Guard:
    """The whole studio, behind its guard."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            session.close()

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(503, ENDED) if session.closed else error_response(500, UNEXPECTED)

    handlers: Any = {Exception: unexpected} | dict.fromkeys((LikewiseError, HTTPException, ClientDisconnect), _explain)
    routes = [*_routes(session), Mount("/", StaticFiles(directory=page, html=True, check_dir=False))]
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), token, port)


def _routes(session: Session) -> list[Route]:
    store, quick, slow = session.store, anyio.CapacityLimiter(AT_ONCE), anyio.CapacityLimiter(SLOW_AT_ONCE)

    def ask(path: str, *given: Any) -> Any:
        """What the method of a tab gives, both named by the path."""
        tab, _, method = path.partition("/")
        return getattr(session.tab(tab), method)(*given)

    def get(path: str) -> Route:
        async def handler(request: Request) -> Response:
            return Json(await to_thread.run_sync(ask, path, limiter=quick))

        return Route(f"/api/{path}", handler, methods=["GET"])

    def light(path: str, limiter: anyio.CapacityLimiter = quick) -> Route:
        async def handler(request: Request) -> Response:
            return Json(await to_thread.run_sync(ask, path, await read_json(request), limiter=limiter))

        return Route(f"/api/{path}", handler, methods=["POST"])

    def job(path: str, queue: Jobs = session.jobs) -> Route:
        async def handler(request: Request) -> Response:
            fields = await read_json(request)
            task = queue.submit(lambda work: ask(path, work, fields), asyncio.get_running_loop())
            return Stream(queue, task)

        return Route(f"/api/{path}", handler, methods=["POST"])

    def upload(path: str, add: Callable[..., list[SessionImage]], limit: int) -> Route:
        async def handler(request: Request) -> Response:
            async with uploads.receive(request, store, limit) as file, uploads.while_there(request):
                added = await to_thread.run_sync(add, file, uploads.name_of(request), store, limiter=slow)
            return Json([image.to_dict() for image in added])

        return Route(f"/api/{path}", handler, methods=["POST"])

    def shown(path: str, find: Callable[..., Path]) -> Route:
        async def handler(request: Request) -> Response:
            return await to_thread.run_sync(lambda: _file(find(**request.path_params)), limiter=quick)

        return Route(f"/api/{path}", handler, methods=["GET"])

    async def about(_: Request) -> Response:
        return Json({"version": version("likewise")})

    return [
        Route("/api/about", about, methods=["GET"]),
        *api.routes(session),
        upload("pictures", uploads.add_image, uploads.MAX_IMAGE),
        upload("videos", uploads.add_frames, uploads.MAX_VIDEO),
        shown("pictures/{key}/{size}", store.view),
        shown("files/{name}", store.file),
        *map(get, ("pixels/samples", "images/sources", "sets/samples", "distributions/generators", "runs/list")),
        *map(job, ("images/search", "images/why", "sets/compare", "distributions/open")),
        *(job(path, session.long) for path in ("images/open", "images/map", "images/duplicates", "pixels/compare")),
        *(job(path, session.long) for path in ("sets/learn", "distributions/measure")),
        *map(light, ("pixels/point", "sets/plan", "distributions/grid", "distributions/point")),
        *map(light, ("runs/read", "runs/cancel")),
        *(light(path, slow) for path in ("images/gallery", "runs/sample")),
    ]


def _file(path: Path) -> Response:
    """An image of the session: its id is its own, so a browser may keep it for a while."""
    kinds = {".png": "image/png", ".jpg": "image/jpeg"}
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # it had to make room just now
        raise not_found("this image") from None
    return Response(data, media_type=kinds[path.suffix], headers={"Cache-Control": "private, max-age=3600"})


async def _explain(request: Request, error: Exception) -> Response:
    """An error of likewise: its own sentence; one of HTTP: no such address, another method, a client that left."""
    if isinstance(error, LikewiseError):
        status = 422 if isinstance(error, InputError | FileError) else getattr(error, "status", 400)
        return error_response(status, sentence(error))
    status = getattr(error, "status_code", 400)
    missing = status == 404
    return error_response(status, "there is nothing at this address" if missing else "the request cannot be answered")


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────────────


class Server(uvicorn.Server):
    """uvicorn's server, which prints its address once it answers, and ends jobs before it waits for their readers."""

    def __init__(self, session: Session, listening: socket.socket, open_browser: bool = False, token: str = "") -> None:
        token, port = token or new_token(), int(listening.getsockname()[1])
        guard = build(session, token, port)
        config = uvicorn.Config(
            guard,
            http=guard.door.protocol(AutoHTTPProtocol),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE,
            ws="none",
            lifespan="on",
        )
        super().__init__(config)
        self.session, self.url, self.open_browser = session, f"http://127.0.0.1:{port}/{token}/", open_browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, then print the address."""
        await super().startup(sockets)
        if self.started:
            print(self.url, flush=True)
            if self.open_browser:
                threading.Thread(target=webbrowser.open, args=(self._way_in(),), daemon=True).start()

    def _way_in(self) -> str:
        """The address of a file that only this user can read, and that leads to the page.

        What a browser is started with, every user of the machine can see in the list of processes.
        """
        file = self.session.store.folder / "studio.html"
        words = (
            f'<!doctype html><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={self.url}">'
        )
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            stream.write(words)
        return file.as_uri()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every job's stream, so that nobody waits for it; what is cut short from now on is so on purpose."""
        self.session.jobs.stop()
        self.session.long.stop()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def run(given: Given | None = None, *, port: int = 0, open_browser: bool = True) -> None:
    """Serve until interrupted."""
    listening = bind(port)
    # The page shows what these would say.
    for kind in (errors.SmallSampleWarning, errors.DegeneracyWarning, errors.ConvergenceWarning):
        warnings.filterwarnings("ignore", category=kind)
    session = Session(given)
    server = Server(session, listening, open_browser=open_browser)
    hangup = getattr(signal, "SIGHUP", None)  # a terminal that is closed; with nohup it stays ignored
    if hangup and signal.getsignal(hangup) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(hangup, server.handle_exit)
    try:
        server.run(sockets=[listening])
    finally:
        session.close()
        listening.close()
        if (
            session.jobs.busy or session.long.busy
        ):  # in the middle of what cannot be interrupted, and whose result nobody wants any more
            sys.stdout.flush()
            os._exit(INTERRUPTED)


def bind(port: int) -> socket.socket:
    """A socket on 127.0.0.1; port 0 takes a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or Nagle delays responses
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InputError(f"port: {port} cannot be used: {error.strerror}; without it a free one is taken") from None
    return listening
