"""A studio to ask: its session, a client that has the token, small images, and lines of jobs."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from likewise.studio.app import Server, Session, bind

TOKEN = "t" * 43


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session(cache=tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


@contextlib.contextmanager
def answering(session: Session) -> Iterator[httpx.Client]:
    """A real server on this machine, in a thread of its own, and a client that knows its token."""
    listening = bind(0)
    serving = Server(session, listening, token=TOKEN)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not serving.started and time.monotonic() < until:
        time.sleep(0.01)
    assert serving.started
    with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}/{TOKEN}/", timeout=120) as client:
        yield client
    serving.should_exit = True
    thread.join(30)  # thousands of files may have to be deleted
    listening.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def client(session: Session) -> Iterator[httpx.Client]:
    with answering(session) as made:
        yield made


@pytest.fixture(scope="session")
def port(client: httpx.Client) -> int:
    return client.base_url.port or 0


def lines_of(client: httpx.Client, path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job to its end; its lines."""
    response = client.post(path, json=fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def result_of(client: httpx.Client, path: str, fields: dict[str, Any]) -> Any:
    """Run a job to its end; its result."""
    last = lines_of(client, path, fields)[-1]
    assert last["state"] == "done", last
    return last["result"]


def scene(seed: int = 0, size: int = 96) -> np.ndarray[Any, Any]:
    """A small image with something to match in it: blocks of random colours, smoothed."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(blocks).resize((size, size), Image.Resampling.BICUBIC))


def encoded(array: np.ndarray[Any, Any], kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def load(client: httpx.Client, url: str) -> np.ndarray[Any, Any]:
    """An image of the studio, as the page would load it."""
    response = client.get(url)
    assert response.status_code == 200
    return np.asarray(Image.open(io.BytesIO(response.content)).convert("RGB"))


@pytest.fixture(scope="session")
def send(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    """Upload an image; what the studio says of it."""

    def sent(array: np.ndarray[Any, Any], name: str = "a.png") -> dict[str, Any]:
        response = client.post("api/pictures", content=encoded(array), headers={"X-Name": name})
        assert response.status_code == 200, response.text
        image: dict[str, Any] = response.json()[0]
        return image

    return sent


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten small photos in two folders; two are equal files, three have a date, two of these a place."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(10):
        place = root / ("left" if i < 5 else "right")
        place.mkdir(exist_ok=True)
        exif = Image.Exif()
        if i in (0, 9):
            exif[0x0132] = "2024:07:01 12:00:00" if i == 9 else "2024:05:01 12:00:00"
            exif.get_ifd(0x8825).update({1: "N", 2: (55.0, 30.0, 0.0), 3: "W", 4: (13.0, 15.0, 0.0)} if i == 0 else {})
        Image.fromarray(scene(0 if i == 5 else i, 160)).save(place / f"{i}.png", exif=exif)
    shutil.copy(root / "left" / "0.png", root / "right" / "5.png")
    return root
