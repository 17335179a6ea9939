"""Nobody without the token, no other name, no other page; and the headers stand on every answer."""

from __future__ import annotations

import asyncio
import http.client
import socket
from typing import Any

import httpx
import pytest

from likewise.studio import requests as security
from likewise.studio.app import Session, bind

from .conftest import TOKEN

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def test_tokens_are_long_and_never_the_same() -> None:
    some = {security.new_token() for _ in range(50)}
    assert len(some) == 50
    assert min(map(len, some)) >= 43
    assert all(set(t) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") for t in some)


OURS = f"/{TOKEN}/api/about"
WRONG_PATHS = ("/", "/api/about", "/wrong/api/about", f"/{TOKEN[:-1]}/api/about", f"/{TOKEN}x/api/about", "//api/about")
OTHER_HOSTS = ("evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{}", "127.0.0.1:{}.evil", "127.0.0.1.evil:{}")
OTHER_PAGES = ("http://evil.example", "null", "https://127.0.0.1:{}", "http://127.0.0.1", "http://127.0.0.1:{}.x")


@pytest.mark.parametrize(
    ("path", "headers", "status", "said"),
    [
        *((path, {}, 403, security.WRONG_TOKEN) for path in WRONG_PATHS),
        *((OURS, {"Host": host}, 421, security.WRONG_HOST) for host in OTHER_HOSTS),
        *((OURS, {"Origin": origin}, 403, security.WRONG_ORIGIN) for origin in OTHER_PAGES),
        (OURS, {"Sec-Fetch-Site": "cross-site"}, 403, security.WRONG_ORIGIN),
    ],
)
def test_without_the_token_by_another_name_or_from_another_page_nothing_is_told(
    port: int, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    given = {name: value.format(port) for name, value in headers.items()}
    for method in ("GET", "POST"):
        answer = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=given)
        assert (answer.status_code, answer.json()) == (status, {"error": said})
        assert answer.headers["content-security-policy"] == POLICY  # refusals carry the headers, too


def test_the_token_alone_leads_to_the_page(client: httpx.Client) -> None:
    answer = client.get(str(client.base_url).removesuffix("/"), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/")


def test_our_own_page_is_answered(client: httpx.Client, port: int) -> None:
    ours = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    for headers in (ours, {"Host": f"LOCALHOST:{port}"}):
        assert client.get("api/images/sources", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["api/images/sources", "api/nothing", "", "index.html", "api/files/x.jpg"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_answer_carries_the_headers(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code in (200, 404, 405), answer.text
    expected = {name.lower(): value for name, value in security.HEADERS.items()}
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert len(expected) == 6
    assert expected["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] in ("no-store", "no-cache")
    assert "set-cookie" not in answer.headers


def test_an_unexpected_error_is_one_plain_sentence(
    client: httpx.Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(*_: object) -> None:
        raise RuntimeError("secret /home/somebody")

    monkeypatch.setattr(session.store, "get", burst)
    answer = client.get("api/pictures/x/thumb")
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")  # the next request takes another one
    assert set(answer.json()) == {"error"}
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"] == POLICY


ESCAPES = [
    r"../app.py",
    r"%2e%2e/app.py",
    r"..%2fapp.py",
    r"%2e%2e%2f%2e%2e%2f%2e%2e%2fpyproject.toml",
    r"....//app.py",
    r"..\app.py",
    r"%00",
    r"/etc/passwd",
    r"//etc/passwd",
    r"api/files/..%2f..%2fetc%2fpasswd",
    r"api/files/%2e%2e",
    r"api/pictures/../../view",
    r"page/../app.py",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out_of_the_page(port: int, path: str) -> None:
    """Sent as they are, byte for byte: most clients would tidy them up."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("GET", f"/{TOKEN}/{path}")
    answer = link.getresponse()
    text = answer.read().decode(errors="replace")
    link.close()
    assert answer.status in (400, 403, 404), text
    assert "root:" not in text
    assert "import" not in text


def test_only_this_machine_can_connect() -> None:
    with bind(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        assert listening.family == socket.AF_INET


def test_web_sockets_are_closed_and_requests_at_once_are_bounded() -> None:
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    guard = security.Guard(None, TOKEN, 80)  # type: ignore[arg-type]
    guard.under_way = security.AT_ONCE
    http = {"type": "http", "path": f"/{TOKEN}/x", "headers": [(b"host", b"127.0.0.1")]}
    for scope in ({"type": "websocket"}, http):
        asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    assert said[0] == {"type": "websocket.close", "code": 1008}
    assert said[1]["status"] == 503
    assert (b"content-security-policy", POLICY.encode()) in said[1]["headers"]
