"""The routes of the studio: each names what it asks a tab for; light ones answer at once, heavy ones are jobs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from likewise.errors import FileError, InputError, LikewiseError
from likewise.studio import uploads
from likewise.studio.asked import Fields, Gone, Refused, body, queried
from likewise.studio.jobs import ENDED, UNFORESEEN, Stream, Work
from likewise.studio.security import Guard, sentence
from likewise.studio.session import Session

PAGE = Path(__file__).parent / "page"
AT_ONCE = 4
"""Light requests that are worked on at the same time."""
log = logging.getLogger("likewise.studio")

Handler = Callable[[Request], Awaitable[Response]]


def guarded(session: Session, token: str, port: int, page: Path = PAGE) -> ASGIApp:
    """The whole studio, behind its guard."""
    return Guard(application(session, page), token, port)


def application(session: Session, page: Path = PAGE) -> FastAPI:
    """The studio without its guard."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            session.close()

    async def unforeseen(request: Request, error: Exception) -> Response:
        return sentence(503, ENDED) if session.closed else sentence(500, UNFORESEEN)

    routes = [*_routes(session), Mount("/", Pages(directory=page, html=True, check_dir=False))]
    handlers: Any = {
        LikewiseError: _explained,
        HTTPException: _http,
        ClientDisconnect: _left,
        Exception: unforeseen,
    }
    return FastAPI(
        routes=routes, lifespan=lifespan, exception_handlers=handlers, openapi_url=None, docs_url=None, redoc_url=None
    )


def _routes(session: Session) -> list[Route]:
    tabs, limiter = session, anyio.CapacityLimiter(AT_ONCE)
    slow, decoding = anyio.CapacityLimiter(2), anyio.CapacityLimiter(2)
    store, arrivals = session.store, uploads.Arrivals(session.store)

    async def answered(call: Callable[..., Any], *arguments: Any) -> JSONResponse:
        """What a light call gives, from a small pool of threads."""
        return JSONResponse(await to_thread.run_sync(call, *arguments, limiter=limiter))

    def get(path: str, call: Callable[[], Any]) -> Route:
        async def handler(request: Request) -> Response:
            return await answered(call)

        return Route(path, handler, methods=["GET"])

    def light(path: str, call: Callable[[Fields], Any]) -> Route:
        async def handler(request: Request) -> Response:
            return await answered(call, await body(request))

        return Route(path, handler, methods=["POST"])

    def job(path: str, call: Callable[[Work, Fields], Any]) -> Route:
        async def handler(request: Request) -> Response:
            import asyncio

            fields = await body(request)
            task = session.jobs.submit(lambda work: call(work, fields), asyncio.get_running_loop())
            return Stream(session.jobs, task)

        return Route(path, handler, methods=["POST"])

    async def picture(request: Request) -> Response:
        name = uploads.name_of(request)
        async with arrivals.received(request, uploads.MOST_PICTURE) as file:
            kept = await to_thread.run_sync(uploads.picture_in, file, name, store, limiter=decoding)
        return JSONResponse(kept.to_dict())

    async def video(request: Request) -> Response:
        name = uploads.name_of(request)
        async with arrivals.received(request, uploads.MOST_VIDEO) as file:
            kept = await to_thread.run_sync(uploads.frames_in, file, name, store, limiter=decoding)
        return JSONResponse({"pictures": [p.to_dict() for p in kept]})

    async def shown(request: Request) -> Response:
        key, thumb = request.path_params["id"], request.path_params["size"] == "thumb"
        if request.path_params["size"] not in ("thumb", "view"):
            raise Refused(404, "there is no such size of a picture")
        return await to_thread.run_sync(lambda: _image(store.shown(key, thumb)), limiter=limiter)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        return await to_thread.run_sync(lambda: _image(store.file(name)), limiter=limiter)

    async def point(request: Request) -> Response:
        key = request.query_params.get("key", "")
        return await answered(tabs.pixels.point, key, queried(request, "x"), queried(request, "y"))

    async def duplicates(request: Request) -> Response:
        name = request.query_params.get("source", "")
        return JSONResponse(await to_thread.run_sync(tabs.images.duplicates, name, limiter=slow))

    async def sample_run(request: Request) -> Response:
        return JSONResponse(await to_thread.run_sync(tabs.runs.sample, limiter=slow))

    async def run(request: Request) -> Response:
        since = queried(request, "since") if "since" in request.query_params else 0.0
        return await answered(tabs.runs.read, request.path_params["id"], since)

    async def cancel(request: Request) -> Response:
        return await answered(tabs.runs.cancel, request.path_params["id"])

    return [
        get("/api/about", session.about),
        Route("/api/pictures", picture, methods=["POST"]),
        Route("/api/videos", video, methods=["POST"]),
        Route("/api/pictures/{id}/{size}", shown, methods=["GET"]),
        Route("/api/files/{name}", file, methods=["GET"]),
        get("/api/pixels/samples", tabs.pixels.samples),
        job("/api/pixels/compare", tabs.pixels.compare),
        light("/api/pixels/match", tabs.pixels.match),
        Route("/api/pixels/point", point, methods=["GET"]),
        get("/api/images/sources", tabs.images.sources),
        job("/api/images/open", tabs.images.open),
        job("/api/images/search", tabs.images.search),
        job("/api/images/why", tabs.images.why),
        Route("/api/images/duplicates", duplicates, methods=["GET"]),
        get("/api/sets/samples", tabs.sets.samples),
        job("/api/sets/compare", tabs.sets.compare),
        light("/api/sets/plan", tabs.sets.plan),
        get("/api/distributions/generators", tabs.distributions.generators),
        job("/api/distributions/open", tabs.distributions.open),
        light("/api/distributions/grid", tabs.distributions.grid),
        light("/api/distributions/point", tabs.distributions.point),
        get("/api/runs", tabs.runs.list),
        Route("/api/runs/sample", sample_run, methods=["POST"]),
        Route("/api/runs/{id}", run, methods=["GET"]),
        Route("/api/runs/{id}/cancel", cancel, methods=["POST"]),
    ]


class Pages(StaticFiles):
    """The files of the page; a browser asks each time whether one has changed."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """A file, with the header that says so."""
        answer = super().file_response(*arguments, **named)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def _image(path: Path) -> Response:
    """An image of the session: its id is its own, so a browser may keep it for a while."""
    kinds = {".png": "image/png", ".jpg": "image/jpeg"}
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # it had to make room just now
        raise Gone("this picture") from None
    return Response(data, media_type=kinds[path.suffix], headers={"Cache-Control": "private, max-age=3600"})


# ── what went wrong ───────────────────────────────────────────────────────────────────────────────────────────────


async def _explained(request: Request, error: Exception) -> Response:
    """An error that was foreseen: its own sentence."""
    status = error.status if isinstance(error, Refused) else 422 if isinstance(error, InputError | FileError) else 400
    answer = sentence(status, " ".join(str(error).split()))
    if status == 408:  # what may still come is not waited for
        answer.headers["Connection"] = "close"
    return answer


async def _http(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    words = {404: "there is nothing at this address", 405: "this address is not asked in this way"}
    return sentence(status, words.get(status, "the request cannot be answered"))


async def _left(request: Request, error: Exception) -> Response:
    return sentence(400, "the request ended before it was complete")
