"""Nobody without the token, no other name, no other page; and the headers stand on every answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
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


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("site", ["none", "cross-site"])
def test_a_browser_that_shows_the_token_goes_on_with_a_cookie(port: int, site: str) -> None:
    address = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=address, follow_redirects=False) as browser:
        answer = browser.get(f"/{TOKEN}/", headers={**NAVIGATION, "Sec-Fetch-Site": site})
        said = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(said.split("; "))
        page = next(part for part in said.split("; ") if part.startswith("Path=")).removeprefix("Path=")
        # a redirect of what came from elsewhere would be asked for without the cookie
        assert answer.status_code == (303 if site == "none" else 200)
        assert (answer.headers.get("location") == page) if site == "none" else (f"url={page}" in answer.text)
        assert TOKEN not in said + answer.text + answer.headers.get("location", "")
        assert browser.get(page).status_code == browser.get(f"{page}api/about").status_code == 200
        assert "<title>likewise studio" in browser.get(page).text
        cookie = said.partition(";")[0]
    for path, headers in ((page, {}), ("/", {"Cookie": cookie}), (page, {"Cookie": f"{cookie}; {cookie}"})):
        assert httpx.get(address + path, headers=headers).status_code == 403, "neither alone, nor two of them"
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        assert httpx.post(f"{address}{page}api/about", headers={"Cookie": cookie, **headers}).status_code in (403, 421)
    other = httpx.get(f"{address}/wrong/", headers={**NAVIGATION, "Sec-Fetch-Site": site})
    assert (other.status_code, "set-cookie" in other.headers) == (403, False)


def test_connections_that_say_nothing_keep_nobody_out(
    client: httpx.Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a request each, without the token: who has the token is answered meanwhile, and they are let go of."""
    monkeypatch.setattr(security, "STRANGERS", 40)  # in all as many as may be open in a test, not 1,005
    idle, sent = list[socket.socket](), f"GET /wrong HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    try:
        for i in range(100):
            one = socket.create_connection(("127.0.0.1", port), timeout=20)
            if i % 2:
                one.sendall(sent)
            idle.append(one)
            if i % 10 == 9:
                assert httpx.get(client.base_url.join("api/about")).status_code == 200
        assert client.get("api/about").status_code == 200
        idle[0].settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b"", "the oldest had to make room"
    finally:
        for one in idle:
            one.close()


def test_who_does_not_show_the_token_in_time_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "HEADERS_WITHIN", 0.05)
    gone: list[int] = []

    class Transport:
        def __init__(self, number: int) -> None:
            self.abort = lambda: gone.append(number)

    async def visits() -> None:
        door = security.Door()
        for i in range(3):
            door.come_in(("127.0.0.1", i), Transport(i))  # type: ignore[arg-type]
        door.pass_on(("127.0.0.1", 1))
        door.pass_on(("127.0.0.1", 99))
        await asyncio.sleep(0.2)

    asyncio.run(visits())
    assert gone == [0, 2]


def test_json_that_does_not_come_is_not_waited_for(
    client: httpx.Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "BODY_WITHIN", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        head = f"POST /{TOKEN}/api/runs/read HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n\r\n{{"
        link.sendall(head.encode())
        assert link.recv(1000).startswith(b"HTTP/1.1 408")


ODD: list[Any] = [
    float("inf"),
    {"step": 1e400, "a": [float("nan")], 3: "x"},
    10**5000,
    "\udcff.jpg",
    {"x": object()},
    {"names": ("\x1b[31m", b"bytes")},
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_whatever_there_is_to_say_is_json(value: Any) -> None:
    json.loads(security.to_json(value), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    circle: list[Any] = [value]
    circle.append(circle)
    json.loads(security.to_json(circle))
    assert json.loads(security.to_json({"name": "\udcff.jpg"})) == {"name": "\udcff.jpg"}, "as the page sends it back"


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
    assert "set-cookie" not in answer.headers, "programs keep the token in the path"


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
