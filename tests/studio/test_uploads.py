"""Files that come in: counted while they come, judged by their content, never decoded when they are too large."""

from __future__ import annotations

import asyncio
import http.client
import socket
import struct
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from PIL import Image

from likewise.studio import uploads
from likewise.studio.asked import Refused
from likewise.studio.session import Session

from .conftest import TOKEN, encoded, scene


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header declares a size that it does not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_comes_back_as_it_was(client: httpx.Client, send: Callable[..., dict[str, Any]]) -> None:
    array = scene(3)
    said = send(array, "caf%C3%A9 1.png")
    assert (said["name"], said["width"], said["height"]) == ("café 1.png", 96, 96)
    shown = client.get(said["url"])
    assert shown.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(_stream(shown.content))), array)
    assert Image.open(_stream(client.get(said["thumb"]).content)).size == (96, 96)


def test_a_large_picture_is_shown_smaller(client: httpx.Client) -> None:
    array = np.broadcast_to(np.arange(2400, dtype=np.uint16)[None, :, None] // 10, (1200, 2400, 3)).astype(np.uint8)
    said = client.post("api/pictures", content=encoded(array, "JPEG")).json()
    assert (said["name"], said["width"], said["height"]) == ("picture", 2400, 1200)
    assert Image.open(_stream(client.get(said["url"]).content)).size == (1600, 800)
    assert Image.open(_stream(client.get(said["thumb"]).content)).size == (256, 128)


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%5C..%5Cx.png", "%00%1b[31mred.png", "x" * 5000])
def test_names_are_only_names(client: httpx.Client, name: str) -> None:
    said = client.post("api/pictures", content=encoded(scene()), headers={"X-Name": name}).json()
    assert "/" not in said["name"]
    assert "\\" not in said["name"]
    assert said["name"].isprintable()
    assert len(said["name"]) <= 120


def test_too_long_by_its_own_word_is_refused_before_it_comes(port: int) -> None:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.putrequest("POST", f"/{TOKEN}/api/pictures")
    link.putheader("Content-Length", str(uploads.MOST_PICTURE + 1))
    link.endheaders()
    assert link.getresponse().status == 413
    link.close()


def test_too_long_without_a_word_is_refused_while_it_comes(
    port: int, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Content-Length: chunks are counted, and the answer comes though the stream has not ended, nor ever does."""
    monkeypatch.setattr(uploads, "MOST_PICTURE", 1 << 20)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        head = f"POST /{TOKEN}/api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        link.sendall(head.encode())
        for _ in range(17):  # 16 chunks are a megabyte, the next is too much
            link.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        answer = b""
        while b"}" not in answer and (more := link.recv(1 << 16)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the file is longer than 1 MB; make it smaller" in answer
    assert not list(session.store.folder.glob("upload-*"))


def test_413_is_told_as_soon_as_it_is_too_long() -> None:
    """The same without a network in between: after the chunk that is too much, none is asked for."""
    asked = 0

    class Request:
        headers: ClassVar[dict[str, str]] = {}

        async def stream(self) -> AsyncIterator[bytes]:
            nonlocal asked
            while True:
                asked += 1
                yield bytes(100)

    kept = bytearray()
    with pytest.raises(Refused) as refused:
        asyncio.run(uploads._copied(Request(), kept.extend, 250))  # type: ignore[arg-type]
    assert (refused.value.status, asked, len(kept)) == (413, 3, 200)


def test_a_client_that_stops_sending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 0.05)

    class Request:
        headers: ClassVar[dict[str, str]] = {}

        async def stream(self) -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(20)

    with pytest.raises(Refused) as refused:
        asyncio.run(uploads._copied(Request(), bytearray().extend, 250))  # type: ignore[arg-type]
    assert refused.value.status == 408


def test_who_is_given_up_is_hung_up_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        head = f"POST /{TOKEN}/api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100000\r\n\r\nx"
        link.sendall(head.encode())
        answer = b""
        while more := link.recv(1 << 16):  # until the server closes
            answer += more
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not come in time" in answer


def test_a_client_that_sends_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "GRACE", 0.05)
    sent = 0

    class Request:
        headers: ClassVar[dict[str, str]] = {}

        async def stream(self) -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 1
                yield b"x"
                await asyncio.sleep(0.02)

    with pytest.raises(Refused) as refused:
        asyncio.run(uploads._copied(Request(), bytearray().extend, 1 << 20))  # type: ignore[arg-type]
    assert refused.value.status == 408
    assert sent < 20
    uploads._quick_enough(5 * uploads.LEAST_RATE, 4.9)
    with pytest.raises(TimeoutError):
        uploads._quick_enough(5 * uploads.LEAST_RATE, 5.1)


def test_uploads_at_once_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = uploads.Arrivals(session.store)
    arrivals._under_way = uploads.AT_ONCE

    async def one() -> None:
        async with arrivals.received(None, 1):  # type: ignore[arg-type]
            pass

    with pytest.raises(Refused) as refused:
        asyncio.run(one())
    assert refused.value.status == 503


@pytest.mark.parametrize("size", [(100_000, 100_000), (60_001, 1000), (2**31 - 1, 2**31 - 1)])
def test_bombs_are_refused_by_their_header(client: httpx.Client, size: tuple[int, int]) -> None:
    before = time.perf_counter()
    answer = client.post("api/pictures", content=bomb(*size), headers={"X-Name": "bomb.png"})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("bomb.png: declares")
    assert time.perf_counter() - before < 5


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7 ", b"\x89PNG\r\n\x1a\n" + bytes(40)],
)
def test_what_is_not_a_picture_is_told_by_the_name_it_was_sent_under(client: httpx.Client, data: bytes) -> None:
    answer = client.post("api/pictures", content=data, headers={"X-Name": "a.jpg"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error.startswith("a.jpg: ")
    assert "likewise-studio" not in error
    assert "upload-" not in error


def test_frames_of_a_video_are_evenly_spaced(client: httpx.Client, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    file = tmp_path / "film.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for i in range(100):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 2 * i, dtype=np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    found = client.post("api/videos", content=file.read_bytes(), headers={"X-Name": "film.mp4"}).json()["pictures"]
    numbers = [int(p["name"].rpartition("#")[2]) for p in found]
    assert 12 <= len(found) <= uploads.FRAMES
    assert numbers[0] == 0
    assert numbers[-1] >= 90
    assert max(np.diff(numbers)) <= 2 * min(np.diff(numbers))
    assert client.post("api/videos", content=encoded(scene())[:40]).status_code == 422


def test_pictures_that_nobody_uses_make_room(tmp_path: Path) -> None:
    from likewise.studio.asked import Gone
    from likewise.studio.store import Store

    store = Store(most_files=8)
    try:
        first = store.keep(scene(0), "first")
        kept = [store.keep(scene(i), f"{i}") for i in range(3)]
        store.picture(first.id)
        store.shown(first.id, thumb=True)
        fourth = store.keep(scene(9), "fourth")
        assert store.array(first.id).shape == (96, 96, 3)
        with pytest.raises(Gone):
            store.array(kept[0].id)
        assert store.array(fourth.id).shape == (96, 96, 3)
        files = [f for f in store.folder.iterdir() if f.is_file()]
        assert len(files) <= 8
        assert store.total == sum(f.stat().st_size for f in files)
    finally:
        store.close()
    assert not store.folder.exists()


def test_the_store_is_bounded_in_bytes_too() -> None:
    from likewise.studio.store import Store

    store = Store(most_bytes=60_000)
    try:
        for i in range(12):
            store.keep(scene(i), f"{i}")
            assert store.total <= 60_000
    finally:
        store.close()


def test_ids_are_unguessable_and_threads_do_not_share_one() -> None:
    from likewise.studio.store import Recent

    kept: Recent[int] = Recent(1000, "this")
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.extend(kept.put(i) for i in range(100))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(ids)) == 400 == len(kept)
    assert min(map(len, ids)) >= 22


def _stream(data: bytes) -> Any:
    import io

    return io.BytesIO(data)
