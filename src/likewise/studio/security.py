"""Who may ask: the token in the path, the Host, the Origin; and the headers that every response carries.

The studio answers on 127.0.0.1 only, but every page that the browser shows can send requests there. The token keeps
out whoever has not seen the URL, the Host keeps out names that were made to point here, the Origin keeps out other
pages.
"""

from __future__ import annotations

import hmac
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

AT_ONCE = 200
"""Requests that are answered at the same time."""

TOO_MANY = f"{AT_ONCE} requests are being answered already; try again in a moment"
WRONG_HOST = "this address belongs to another name; open the address that likewise studio printed"
WRONG_TOKEN = "the token in this address is not the right one; open the address that likewise studio printed"
WRONG_ORIGIN = "this request comes from another page; likewise studio answers its own page only"


def new_token() -> str:
    """256 random bits as text that may stand in a URL."""
    return secrets.token_urlsafe(32)


class Guard:
    """Lets a request through to `app` if its Host, token and Origin are right, without the token in its path.

    Every response, refusals and errors too, goes out with HEADERS, and is not to be stored unless it says otherwise.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, limit: int = AT_ONCE) -> None:
        self.app, self.token, self.limit, self.under_way = app, token, limit, 0
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
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(first.encode(), self.token.encode()):
            return error_response(403, WRONG_TOKEN)
        if any(origin.lower() not in self.origins for origin in headers.getlist("origin")):
            return error_response(403, WRONG_ORIGIN)
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return error_response(403, WRONG_ORIGIN)
        if self.under_way >= self.limit:
            return error_response(503, TOO_MANY)
        return None if slash else RedirectResponse(f"/{self.token}/")

    def _without_token(self, scope: Scope) -> Scope:
        """The scope as the app sees it: the path without the token."""
        path = scope["path"][len(self.token) + 1 :]
        return {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}


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


def error_response(status: int, message: str) -> JSONResponse:
    """An error as the page gets it: one sentence."""
    return JSONResponse({"error": message}, status)
