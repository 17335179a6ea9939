"""Files that come in: counted while they come, judged by their content, never decoded when they are too large."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from likewise import bounded
from likewise.errors import RequestError
from likewise.studio import uploads
from likewise.studio.app import Session
from likewise.studio.uploads import ImageStore, Recent
from tests.worlds.layouts import video

from .conftest import TOKEN, encoded, load, scene


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header declares a size that it does not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_an_image_comes_back_as_it_was(client: httpx.Client, send: Callable[..., dict[str, Any]]) -> None:
    array = scene(3)
    said = send(array, "caf%C3%A9 1.png")
    assert (said["name"], said["width"], said["height"]) == ("café 1.png", 96, 96)
    shown = client.get(said["url"])
    assert shown.headers["content-type"] == "image/png"
    assert np.array_equal(load(client, said["url"]), array)
    assert load(client, said["thumb"]).shape == (96, 96, 3)


def test_a_large_image_is_shown_smaller(client: httpx.Client) -> None:
    array = np.broadcast_to(np.arange(2400, dtype=np.uint16)[None, :, None] // 10, (1200, 2400, 3)).astype(np.uint8)
    said = client.post("api/pictures", content=encoded(array, "JPEG")).json()[0]
    assert (said["name"], said["width"], said["height"]) == ("image", 2400, 1200)
    assert load(client, said["url"]).shape == (800, 1600, 3)
    assert load(client, said["thumb"]).shape == (128, 256, 3)


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%5C..%5Cx.png", "%00%1b[31mred.png", "x" * 5000])
def test_names_are_only_names(client: httpx.Client, name: str) -> None:
    said = client.post("api/pictures", content=encoded(scene()), headers={"X-Name": name}).json()[0]
    assert "/" not in said["name"]
    assert "\\" not in said["name"]
    assert said["name"].isprintable()
    assert len(said["name"]) <= 120


MEGABYTE = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
"""A chunk as HTTP sends it; 40 are allowed."""


@pytest.mark.parametrize(
    ("header", "chunks", "limit", "status", "said"),
    [
        (f"Content-Length: {uploads.MAX_IMAGE + 1}", [], {}, 413, "the file is longer than 40 MB; make it smaller"),
        ("Transfer-Encoding: chunked", [MEGABYTE] * 41, {}, 413, "the file is longer than 40 MB; make it smaller"),
        ("Content-Length: 100000", [b"x"], {"PATIENCE": 0.2}, 408, "did not come in time"),  # stops sending
        ("Content-Length: 100000", [b"x", b"x"], {"GRACE": 0.05}, 408, "did not come in time"),  # sends too slowly
    ],
    ids=["declared", "counted", "stopped", "slow"],
)
def test_an_upload_is_given_up_as_soon_as_it_must_be(
    port: int,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    header: str,
    chunks: list[bytes],
    limit: dict[str, float],
    status: int,
    said: str,
) -> None:
    """By its own word, or counted while it comes: the answer comes though the stream has not ended, nor ever does."""
    for name, seconds in limit.items():
        monkeypatch.setattr(uploads, name, seconds)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(f"POST /{TOKEN}/api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n\r\n".encode())
        for chunk in chunks:
            link.sendall(chunk)
            time.sleep(0.1 if limit else 0)
        answer = b""
        while b"}" not in answer and (more := link.recv(1 << 16)):
            answer += more
        assert status != 408 or link.recv(1) == b""  # who is given up is hung up on
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert said.encode() in answer
    assert not list(session.store.folder.glob("upload-*"))


def test_uploads_at_once_are_bounded(client: httpx.Client, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.store, "uploading", uploads.AT_ONCE)
    assert client.post("api/pictures", content=encoded(scene())).status_code == 503


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *((bomb(*size), "declares") for size in [(100_000, 100_000), (60_001, 1000), (2**31 - 1, 2**31 - 1)]),
        *((data, "") for data in (b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7 ")),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), ""),
    ],
)
def test_bombs_and_what_is_not_an_image_are_told_by_the_name_sent(client: httpx.Client, data: bytes, said: str) -> None:
    before = time.perf_counter()
    answer = client.post("api/pictures", content=data, headers={"X-Name": "a.jpg"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error.startswith(f"a.jpg: {said}")
    assert "likewise-studio" not in error
    assert "upload-" not in error
    assert time.perf_counter() - before < 5  # by their header: a bomb is not decoded


def test_frames_of_a_video_are_evenly_spaced(client: httpx.Client, tmp_path: Path) -> None:
    pytest.importorskip("av")
    file = video(tmp_path / "film.mp4", frames=100, step=1)
    result = client.post("api/videos", content=file.read_bytes(), headers={"X-Name": "film.mp4"}).json()
    numbers = [int(p["name"].rpartition("#")[2]) for p in result]
    assert 12 <= len(result) <= uploads.FRAMES
    assert numbers[0] == 0
    assert numbers[-1] >= 90
    assert max(np.diff(numbers)) <= 2 * min(np.diff(numbers))
    assert client.post("api/videos", content=encoded(scene())[:40]).status_code == 422


def test_images_that_nobody_uses_make_room() -> None:
    with contextlib.closing(ImageStore(max_files=8)) as store:
        first = store.add(scene(0), "first")
        kept = [store.add(scene(i), f"{i}") for i in range(3)]
        store.view(first.id, "thumb")
        store.get(first.id)
        fourth = store.add(scene(9), "fourth")
        assert store.read(first.id).shape == store.read(fourth.id).shape == (96, 96, 3)
        with pytest.raises(RequestError):
            store.read(kept[0].id)
        files = [f for f in store.folder.iterdir() if f.is_file() and not f.name.startswith(".")]
        assert len(files) <= 8
        assert store.total == sum(f.stat().st_size for f in files)
    assert not store.folder.exists()
    with contextlib.closing(ImageStore(max_bytes=60_000)) as store:  # bounded in bytes, too
        for i in range(12):
            store.add(scene(i), f"{i}")
            assert store.total <= 60_000


def test_ids_are_unguessable_and_threads_do_not_share_one() -> None:
    kept: Recent[int] = Recent(1000, "this")
    with ThreadPoolExecutor(4) as pool:
        ids = [key for keys in pool.map(lambda _: [kept.put(i) for i in range(100)], range(4)) for key in keys]
    assert len(set(ids)) == 400
    assert all(kept.find(i) is not None for i in ids)
    assert min(map(len, ids)) >= 22


def test_a_decoder_that_crashes_ends_neither_the_server_nor_the_next_upload(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bounded.call
    with monkeypatch.context() as broken:
        broken.setattr(bounded, "call", lambda *_, name, **__: real("signal:raise_signal", 11, name=name))
        answer = client.post("api/pictures", content=encoded(scene()), headers={"X-Name": "a.png"})
        assert (answer.status_code, answer.json()) == (422, {"error": "a.png: damaged: its decoder crashed (SIGSEGV)"})
    assert client.post("api/pictures", content=encoded(scene()), headers={"X-Name": "a.png"}).status_code == 200


def test_what_a_client_that_has_gone_sent_is_not_decoded_to_its_end(
    client: httpx.Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, real = threading.Event(), threading.Event(), bounded.call

    def slow(*_: object, name: str, **__: object) -> object:
        begun.set()
        try:
            return real("time:sleep", 60, name=name)
        finally:
            ended.set()

    monkeypatch.setattr(bounded, "call", slow)
    content, port = encoded(scene()), client.base_url.port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as link:
        head = f"POST {client.base_url.path}api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        link.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        assert begun.wait(20)
    assert ended.wait(20), "a minute, if it were not for the client"
