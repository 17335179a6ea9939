"""Requests: who may ask, what may be asked for, and the queue in which heavy work waits.

The studio answers on 127.0.0.1 only, but every page that the browser shows can send requests there, and so can every
user of the machine. The token keeps out whoever has not seen the URL, the Host keeps out names that were made to point
here, the Origin keeps out other pages. A browser that opens the URL is given a cookie for it. Who has not shown the
token yet has connections of his own, few and short. Each field of a request is checked against its bounds before any
work is done. Heavy work waits in a queue that holds a few, with a thread that works and a stream of lines for each job;
the studio has two, so that what takes long never holds up what somebody looks at. A job is a function of its Work, by
which it reports what it is doing and learns whether it was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import secrets
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from likewise.errors import InputError, LikewiseError, RequestError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HOSTS = ("127.0.0.1", "localhost")

COOKIE = "likewise"
API = "/api/v1/"
"""Below this the token may come in a header, Authorization: Bearer …, instead of in the path."""

AT_ONCE = 200
"""Requests that are answered at the same time."""

STRANGERS, HEADERS_WITHIN = 400, 10.0
"""Connections that have not shown the token yet, of which the oldest makes room for the next; and seconds they have."""
BODY_WITHIN = 10.0
"""Seconds in which the JSON of a request must have come."""

TOO_MANY = f"{AT_ONCE} requests are being answered already; try again in a moment"
WRONG_HOST = "this address belongs to another name; open the address that likewise studio printed"
WRONG_TOKEN = "the token in this address is not the right one; open the address that likewise studio printed"
WRONG_ORIGIN = "this request comes from another page; likewise studio answers its own page only"


def new_token() -> str:
    """256 random bits as text that may stand in a URL."""
    return secrets.token_urlsafe(32)


class Door:
    """The connections that have not shown the token: so many that say nothing never keep out one that has it.

    `protocol` is what uvicorn makes of each connection; the guard lets those `pass_on` that sent the token.
    """

    def __init__(self) -> None:
        self._waiting = OrderedDict[Any, tuple[asyncio.Transport, asyncio.TimerHandle]]()

    def protocol(self, base: Any) -> Any:
        """A class of connections that come in here, made of uvicorn's own."""
        door = self

        class Connection(base):  # type: ignore[misc]
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                door.come_in(self.client, transport)

            def connection_lost(self, error: Exception | None) -> None:
                door.pass_on(self.client)
                super().connection_lost(error)

        return Connection

    def come_in(self, client: Any, transport: asyncio.Transport) -> None:
        """A new connection: it has a while to show the token, or less where many more come."""
        if len(self._waiting) >= STRANGERS:
            oldest, timer = self._waiting.popitem(last=False)[1]
            timer.cancel()
            oldest.abort()
        self._waiting[client] = transport, asyncio.get_running_loop().call_later(HEADERS_WITHIN, transport.abort)

    def pass_on(self, client: Any) -> None:
        """This connection has shown the token, or has gone."""
        if client in self._waiting:
            self._waiting.pop(client)[1].cancel()


class Guard:
    """Lets a request through to `app` if its Host, token and Origin are right, without the token in its path.

    A browser that opens /token/ is sent to /page/ with a cookie, so that the token is in no history and no referrer.
    Cookies are not told apart by port: the page's path is a secret, too, and no other server of this machine is sent
    the cookie. Every response, refusals and errors too, goes out with HEADERS, and is not to be stored unless it says
    otherwise.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self.token, self.under_way, self.door = app, token, 0, Door()
        self.page, self.key = new_token(), new_token()
        self.hosts = {f"{host}:{port}" for host in HOSTS} | ({*HOSTS} if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: there are none here
            await send({"type": "websocket.close", "code": 1008})
            return
        response = self._refuse(scope)
        if response is not None:
            await response(scope, receive, _with_headers(send))
            return
        self.under_way += 1
        try:
            await self.app(self._without_token(scope), receive, _with_headers(send))
        finally:
            self.under_way -= 1

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return error_response(421, WRONG_HOST)
        first, slash, rest = scope["path"].removeprefix("/").partition("/")
        if scope["path"].startswith(API) and (said := headers.getlist("authorization")):
            scheme, _, first = said[0].partition(" ")
            first = first if scheme.lower() == "bearer" and len(said) == 1 else ""
        told = _same(first, self.token)
        if not told and not (_same(first, self.page) and _same(_cookie(headers, COOKIE), self.key)):
            return error_response(403, WRONG_TOKEN)
        self.door.pass_on(scope.get("client"))
        if any(origin.lower() not in self.origins for origin in headers.getlist("origin")):
            return error_response(403, WRONG_ORIGIN)
        near = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if told and not rest and headers.get("sec-fetch-mode") == "navigate":
            return self._exchange(near)
        if not near:
            return error_response(403, WRONG_ORIGIN)
        if self.under_way >= AT_ONCE:
            return error_response(503, TOO_MANY)
        return None if slash else RedirectResponse(f"/{first}/")

    def _exchange(self, near: bool) -> Response:
        """The way to the page for a browser that shows the token.

        One that comes from elsewhere (the file that a start opens) would not send the cookie after a redirect: it goes
        on by itself.
        """
        place = f"/{self.page}/"
        on = f'<!doctype html><meta http-equiv="refresh" content="0; url={place}"><a href="{place}">likewise studio</a>'
        response: Response = RedirectResponse(place, 303) if near else HTMLResponse(on)
        response.set_cookie(COOKIE, self.key, path=place, httponly=True, samesite="strict")
        return response

    def _without_token(self, scope: Scope) -> Scope:
        """The scope as the app sees it: the path without the token, which a header may have brought instead."""
        path = scope["path"] if scope["path"].startswith(API) else "/" + scope["path"].split("/", 2)[2]
        return {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


def _cookie(headers: Headers, name: str) -> str:
    """The value of a cookie; "" where it is not sent, or twice."""
    sent = [part.strip().partition("=") for line in headers.getlist("cookie") for part in line.split(";")]
    values = [value for key, _, value in sent if key == name]
    return values[0] if len(values) == 1 else ""


def _with_headers(send: Send) -> Send:
    """A `send` that adds the headers to whatever response begins."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_headers


def to_json(value: Any) -> bytes:
    """Any value as JSON, in ASCII, and never an error.

    The name of a file may hold bytes of no encoding, a figure of a log may be infinite, and one of many must not keep
    the others from the page.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError):
        return json.dumps(_plain(value)).encode()


def _plain(value: Any, depth: int = 0) -> Any:
    """What JSON holds of a value: null for a number that is none, words for what it does not know."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e300 else None
    if depth < 20 and isinstance(value, Mapping):
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    if depth < 20 and isinstance(value, list | tuple):
        return [_plain(v, depth + 1) for v in value]
    return type(value).__name__


class Json(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return to_json(content)


def error_response(status: int, message: str) -> Json:
    """An error as the page gets it: one sentence.

    After 408 nothing that may still come is waited for, and after 500 uvicorn closes the connection: both are said, or
    the next request on that connection would meet its end.
    """
    return Json({"error": message}, status, {"Connection": "close"} if status in (408, 500) else None)


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────

MAX_BODY = 256 << 10
"""Bytes of a JSON body."""
MAX_TEXT = 200
"""Characters of a text field; ids have 22."""
Fields = Mapping[str, Any]


def not_found(what: str) -> RequestError:
    """The error for an id that nothing is kept under: it never was, or it was the oldest and made room."""
    return RequestError(404, f"{what} is not here any more, or never was; choose it again")


async def read_json(request: Request) -> Fields:
    """The JSON object that was sent; what is too long, not JSON, not an object, or holds NaN is refused."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_BODY:
                    raise RequestError(413, f"the request is longer than {MAX_BODY >> 10} kB")
    except TimeoutError:
        raise RequestError(408, "the request did not come in time; send it again") from None
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise RequestError(400, "the request is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"the request should be a JSON object, and is a {type(body).__name__}")
    return body


def _refuse_constant(word: str) -> None:
    raise ValueError(word)


def text(fields: Fields, name: str) -> str:
    """A field that is text of 1 to MAX_TEXT characters, such as an id."""
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise InputError(f"{name}: expected text of 1 to {MAX_TEXT} characters, got {_show(value)}")
    return value


def ids(fields: Fields, name: str, limit: int) -> list[str]:
    """A field that is a list of 1 to `limit` ids of images."""
    value = fields.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= limit:
        got = f"{len(value)}" if isinstance(value, list) else _show(value)
        raise InputError(f"{name}: expected a list of 1 to {limit} images, got {got}")
    return [text({name: item}, name) for item in value]


def number(fields: Fields, name: str, low: float, high: float, default: float | None = None) -> float:
    """A field that is a number from `low` to `high`; `default` where it is missing."""
    value = fields.get(name)
    if value is None and default is not None:
        return float(default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {_show(value)}")
    return float(value)


def whole(fields: Fields, name: str, low: int, high: int, default: int | None = None) -> int:
    """A field that is a whole number from `low` to `high`; `default` where it is missing."""
    value = number(fields, name, low, high, default)
    if not value.is_integer():
        raise InputError(f"{name}: expected a whole number from {low} to {high}, got {value:g}")
    return int(value)


def _show(value: Any) -> str:
    words = "nothing" if value is None or value == "" else json.dumps(value, ensure_ascii=False)
    return words if len(words) <= 40 else words[:38] + "…"


LITERALS = {"None": "nothing", "True": "yes", "False": "no"}


def sentence(error: LikewiseError) -> str:
    """An error as the page says it: one line, without Python's literals."""
    words = " ".join(str(error).split())
    if not isinstance(error, InputError):
        return words
    words = re.sub(r"(?<!\w)'([^']*)'(?!\w)", r"“\1”", words)
    return re.sub(r"\b(None|True|False)\b", lambda match: LITERALS[match[0]], words)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MAX_WAITING = 8
BUSY = f"{MAX_WAITING} jobs are waiting already; try again when one of them is done"
ENDED = "likewise studio has been stopped"
UNEXPECTED = "an unexpected error; the terminal in which likewise studio runs has the details"
log = logging.getLogger("likewise.studio")

Task = Callable[["Work"], Any]


class Cancelled(Exception):
    """Nobody waits for the result any more: ends a job from within, never seen by a caller."""


class Work:
    """One job: its task `report`s what it does, hands out `partial` results, and `check`s whether to go on.

    Lines are posted by threads and read by one event loop.
    """

    def __init__(self, task: Task, loop: asyncio.AbstractEventLoop) -> None:
        self.task, self._loop = task, loop
        self.cancelled, self._lines = threading.Event(), asyncio.Queue[tuple[str, bytes]]()

    def check(self) -> None:
        """Raise Cancelled where the reader has closed the connection."""
        if self.cancelled.is_set():
            raise Cancelled

    def report(self, words: str, done: float | None = None) -> None:
        """Report what is being done and, where it is known, which share of it is done."""
        self.check()
        self.post({"state": "working", "words": words, "done": done})

    def partial(self, result: Any) -> None:
        """Hand out what is known so far."""
        self.check()
        self.post({"state": "partial", "result": result})

    def post(self, line: dict[str, Any]) -> None:
        """Add a line."""
        data = to_json(line) + b"\n"
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, (line["state"], data))
        except RuntimeError:  # the loop has closed: nobody reads any more
            self.cancelled.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines as they come, to the last."""
        state = ""
        while state not in ("done", "failed"):
            state, data = await self._lines.get()
            yield data

    def run(self) -> None:
        """Do the work; whatever becomes of it is the last line."""
        try:
            self.report("starting")
            self.post({"state": "done", "result": self.task(self)})
        except Cancelled:
            self.post({"state": "failed", "error": "cancelled"})
        except LikewiseError as error:
            self.post({"state": "failed", "error": sentence(error)})
        except Exception:
            log.exception("a job failed")
            self.post({"state": "failed", "error": UNEXPECTED})


class Jobs:
    """The queue and its one worker, which begins with the first job."""

    def __init__(self) -> None:
        self._waiting = deque[Work]()
        self._running: Work | None = None
        self._change = threading.Condition()
        self._open, self._thread = True, threading.Thread(target=self._serve, name="studio-jobs", daemon=True)

    def submit(self, task: Task, loop: asyncio.AbstractEventLoop) -> Work:
        """Queue a piece of work; refused where too many wait."""
        job = Work(task, loop)
        with self._change:
            if len(self._waiting) >= MAX_WAITING or not self._open:
                raise RequestError(503, BUSY)
            if self._thread.ident is None:
                self._thread.start()
            self._waiting.append(job)
            self._report_queue()
            self._change.notify()
        return job

    def cancel(self, job: Work) -> None:
        """A job that waits never starts; one that runs stops at its next stage."""
        job.cancelled.set()
        with self._change:
            if job in self._waiting:
                self._waiting.remove(job)
                self._report_queue()

    def stop(self) -> None:
        """Cancel everything, end the streams of all who listen, and take nothing more."""
        with self._change:
            self._open = False
            left = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            self._change.notify()
        for job in left:
            job.cancelled.set()
            job.post({"state": "failed", "error": ENDED})

    @property
    def busy(self) -> bool:
        """Whether the worker is still at work, though it was asked to stop."""
        return not self._open and self._thread.is_alive()

    def close(self, patience: float = 1.5) -> None:
        """Cancel everything and let the worker go."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _report_queue(self) -> None:
        """Tell each job that waits how many are ahead of it."""
        ahead = int(self._running is not None)
        for i, job in enumerate(self._waiting):
            job.post({"state": "waiting", "ahead": ahead + i})

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._change:
                self._running = None

    def _next(self) -> Work | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or not self._open)
            if not self._open:
                return None
            self._running = self._waiting.popleft()
            self._report_queue()
            return self._running


class Stream(StreamingResponse):
    """The lines of a job as NDJSON, one write each; when the reader goes, the job is cancelled."""

    media_type = "application/x-ndjson"

    def __init__(self, jobs: Jobs, job: Work) -> None:
        self.jobs, self.job = jobs, job
        super().__init__(job.lines())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.jobs.cancel(self.job)


WATCHED = Counter[int]()
"""How many jobs are inside each model: in a forward pass it is not known whose that is, so only a job that is alone is
ended there."""


@contextlib.contextmanager
def watch(model: Any, work: Work, words: str = "", total: int = 0) -> Iterator[None]:
    """While inside, every module of a model's network first checks whether the work was cancelled.

    With `total`, the images that pass are counted and reported as so many of it: the module that is called first sees
    every one of them.
    """
    lock, seen, first = threading.Lock(), 0, list[Any]()

    def before(module: Any, inputs: tuple[Any, ...]) -> None:
        nonlocal seen
        if WATCHED[id(model)] == 1:
            work.check()
        with lock:
            if not first:
                first.append(module)
            if total and module is first[0] and not work.cancelled.is_set():
                seen += len(inputs[0])
                work.report(f"{words}, {min(seen, total)} of {total}", min(1.0, seen / total))

    modules: Iterable[Any] = getattr(getattr(model, "network", None), "modules", list)()
    hooks = [module.register_forward_pre_hook(before) for module in modules]
    WATCHED[id(model)] += 1
    try:
        yield
    finally:
        WATCHED[id(model)] -= 1
        for hook in hooks:
            hook.remove()
