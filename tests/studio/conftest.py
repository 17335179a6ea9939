"""A studio to ask: its session, a client that has the token, small pictures, and lines of jobs."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from likewise.studio.serving import bound, server
from likewise.studio.session import Session

TOKEN = "t" * 43


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session(cache=tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


@contextlib.contextmanager
def answering(session: Session) -> Iterator[int]:
    """A real server on this machine, in a thread of its own; its port."""
    listening = bound(0)
    serving = server(session, listening, token=TOKEN)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not serving.started and time.monotonic() < until:
        time.sleep(0.01)
    assert serving.started
    yield int(listening.getsockname()[1])
    serving.should_exit = True
    thread.join(30)  # thousands of files may have to be deleted
    listening.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def port(session: Session) -> Iterator[int]:
    with answering(session) as number:
        yield number


@pytest.fixture(scope="session")
def client(port: int) -> Iterator[httpx.Client]:
    """A client that knows the token."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/{TOKEN}/", timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def ask(client: httpx.Client) -> Callable[[str, dict[str, Any]], list[dict[str, Any]]]:
    """Run a job to its end; its lines."""

    def lines(path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        answer = client.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]

    return lines


@pytest.fixture(scope="session")
def done(ask: Callable[[str, dict[str, Any]], list[dict[str, Any]]]) -> Callable[[str, dict[str, Any]], Any]:
    """Run a job to its end; its result."""

    def result(path: str, fields: dict[str, Any]) -> Any:
        last = ask(path, fields)[-1]
        assert last["state"] == "done", last
        return last["result"]

    return result


def scene(seed: int = 0, size: int = 96) -> np.ndarray[Any, Any]:
    """A small picture with something to find in it: blocks of random colours, smoothed."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(blocks).resize((size, size), Image.Resampling.BICUBIC))


def encoded(array: np.ndarray[Any, Any], kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def send(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    """Upload a picture; what the studio says of it."""

    def sent(array: np.ndarray[Any, Any], name: str = "a.png") -> dict[str, Any]:
        answer = client.post("api/pictures", content=encoded(array), headers={"X-Name": name})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    return sent


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten small photos in two folders; two of them are the same."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(10):
        place = root / ("left" if i < 5 else "right")
        place.mkdir(exist_ok=True)
        (place / f"{i}.png").write_bytes(encoded(scene(0 if i == 5 else i, 160)))
    return root
