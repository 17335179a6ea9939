"""The studio under load: a hundred clients at once and twenty slow ones, on this machine only.

python benchmarks/load_studio.py [--seconds 30] [--clients 100] [--slow 20]

Every client asks one thing after another: light requests, uploads (good ones, one that is too long and does not say so,
one that declares ten thousand megapixels), and jobs, of which most are refused (503) or given up half-way. The slow
clients send a byte a second of a picture and never finish. What is recorded: how often and how quickly each was
answered, with which status, the server's largest memory, and whether it is alive and well at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from record import record

PATIENCE = 60.0
TOO_LONG = 41 << 20


@dataclass
class Tally:
    """Seconds and statuses of each kind of request."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, kind: str, seconds: float, status: str) -> None:
        """One answer."""
        self.seconds[kind].append(seconds)
        self.statuses[kind][status] += 1


@dataclass(frozen=True)
class World:
    """What the clients ask about: made once, before the load."""

    pictures: list[str]
    thumb: str
    compared: str
    albums: str
    small: bytes
    bomb: bytes


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────────────


def begun(cache: str) -> tuple[subprocess.Popen[str], str]:
    """A studio in a process of its own, and its address."""
    command = [sys.executable, "-m", "likewise.cli", "studio", "--no-open"]
    env = {**os.environ, "LIKEWISE_CACHE": cache, "TMPDIR": cache}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def memory(pid: int, what: str) -> float:
    """VmHWM (the largest so far) or VmRSS of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


async def prepared(client: httpx.AsyncClient) -> World:
    """Two pictures compared, two albums described, so that light requests have something to ask about."""
    whole = scene(0, 200)
    crops = [whole[i : i + 160, 2 * i : 2 * i + 160] for i in range(0, 18, 3)]
    ids = [(await client.post("api/pictures", content=png(crop))).json()[0] for crop in crops]
    names = [p["id"] for p in ids]
    compared = await finished(client, "api/pixels/compare", {"a": names[0], "b": names[1]})
    albums = await finished(client, "api/sets/compare", {"a": names[:3], "b": names[3:]})
    return World(names, ids[0]["thumb"], compared["key"], albums["key"], png(scene(9, 240)), bomb())


async def finished(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> Any:
    """The result of a job."""
    answer = await client.post(path, json=fields, timeout=300)
    last = json.loads(answer.text.splitlines()[-1])
    assert last["state"] == "done", last
    return last["result"]


# ── the clients ───────────────────────────────────────────────────────────────────────────────────────────────────


async def busy(client: httpx.AsyncClient, world: World, tally: Tally, until: float, draw: random.Random) -> None:
    """One client: one request after another."""
    while time.monotonic() < until:
        kind = draw.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        began = time.perf_counter()
        try:
            status = await KINDS[kind][1](client, world, draw)
        except (httpx.HTTPError, OSError) as error:
            status = type(error).__name__
        tally.add(kind, time.perf_counter() - began, status)


async def about(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    return str((await client.get("api/about")).status_code)


async def thumb(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    return str((await client.get(world.thumb)).status_code)


async def match(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    fields = {"key": world.compared, "radius": draw.uniform(1, 30)}
    return str((await client.post("api/pixels/match", json=fields)).status_code)


async def plan(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    fields = {"key": world.albums, "gamma": None, "metric": draw.choice(["identity", "learned"])}
    return str((await client.post("api/sets/plan", json=fields)).status_code)


async def nonsense(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    return str((await client.post("api/pixels/match", content=b'{"key": NaN')).status_code)


async def upload(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    return str((await client.post("api/pictures", content=world.small)).status_code)


async def bombs(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    return str((await client.post("api/pictures", content=world.bomb)).status_code)


async def endless(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    """More than is allowed, in chunks, without saying how much it will be."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(TOO_LONG >> 18):
            yield bytes(1 << 18)

    return str((await client.post("api/pictures", content=chunks())).status_code)


async def job(client: httpx.AsyncClient, world: World, draw: random.Random) -> str:
    """A heavy request, given up after a second or two where it is not done by then."""
    a, b = draw.sample(world.pictures, 2)
    async with client.stream("POST", "api/pixels/compare", json={"a": a, "b": b}) as answer:
        if answer.status_code != 200:
            return str(answer.status_code)
        until, last = time.monotonic() + draw.uniform(0.5, 2), b""
        lines = answer.aiter_lines()
        try:
            while time.monotonic() < until:
                last = (await asyncio.wait_for(anext(lines), until - time.monotonic())).encode()
        except StopAsyncIteration:
            return "200 done" if b'"done"' in last else "200 failed"
        except TimeoutError:
            pass
    return "200, left"


KINDS: dict[str, tuple[float, Any]] = {
    "about": (2, about),
    "thumbnail": (5, thumb),
    "matches": (4, match),
    "plan": (5, plan),
    "nonsense": (2, nonsense),
    "upload": (3, upload),
    "bomb": (1, bombs),
    "too long, unsaid": (0.1, endless),
    "job": (2, job),
}


async def slow(port: int, path: str, until: float, tally: Tally) -> None:
    """A client that sends a byte a second of a picture that it said would be longer; begun again when it is cut off."""
    while time.monotonic() < until:
        began, status = time.perf_counter(), "held to the end"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {path}api/pictures HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100000\r\n\r\n"
            writer.write(head.encode())
            while time.monotonic() < until and not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(1)
            if reader.at_eof():
                status = "cut off"
            writer.close()
        except OSError as error:
            status = type(error).__name__
        tally.add("slow upload", time.perf_counter() - began, status)


async def loaded(address: str, seconds: float, clients: int, slows: int) -> tuple[Tally, dict[str, float]]:
    """All clients at once; what they were told, and how quickly the studio answers afterwards."""
    tally, url = Tally(), httpx.URL(address)
    limits = httpx.Limits(max_connections=clients + 20, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
        world = await prepared(client)
        until = time.monotonic() + seconds
        asked = [busy(client, world, tally, until, random.Random(i)) for i in range(clients)]
        held = [slow(int(url.port or 0), url.path, until, tally) for _ in range(slows)]
        await asyncio.gather(*asked, *held)
        return tally, await recovered(client, world)


async def recovered(client: httpx.AsyncClient, world: World) -> dict[str, float]:
    """Seconds that one light request and one whole job take when the load is gone."""
    began = time.perf_counter()
    assert (await client.get("api/about")).status_code == 200
    light = time.perf_counter() - began
    began = time.perf_counter()
    await finished(client, "api/pixels/compare", {"a": world.pictures[0], "b": world.pictures[1]})
    return {"light": light, "job": time.perf_counter() - began}


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def scene(seed: int, size: int) -> np.ndarray[Any, Any]:
    """Blocks of random colours, smoothed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(blocks).resize((size, size), Image.Resampling.BICUBIC))


def png(array: np.ndarray[Any, Any]) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def bomb() -> bytes:
    """A header that declares 100,000 × 100,000 pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return whole + struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(tally: Tally) -> list[dict[str, Any]]:
    """A row a kind of request."""
    return [
        {
            "request": kind,
            "answers": len(times),
            "median ms": round(1000 * float(np.median(times))),
            "95 % ms": round(1000 * float(np.percentile(times, 95))),
            "largest ms": round(1000 * max(times)),
            "statuses": ", ".join(f"{status}: {n}" for status, n in sorted(tally.statuses[kind].items())),
        }
        for kind, times in tally.seconds.items()
    ]


def main() -> None:
    """Run it and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--slow", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        child, address = begun(cache)
        try:
            idle = memory(child.pid, "VmRSS")
            tally, after = asyncio.run(loaded(address, given.seconds, given.clients, given.slow))
            alive = child.poll() is None
            peak = memory(child.pid, "VmHWM")
            files = sum(f.stat().st_size for f in Path(cache).glob("likewise-studio-*/*") if f.is_file()) / 2**20
        finally:
            child.send_signal(signal.SIGINT)
            code = child.wait(60)
    rows = rows_of(tally)
    rows.append(
        {
            "request": "the server",
            "alive": alive,
            "exit code": code,
            "idle MB": round(idle),
            "peak MB": round(peak),
            "session MB": round(files, 1),
            "light ms afterwards": round(1000 * after["light"]),
            "job s afterwards": round(after["job"], 1),
        }
    )
    unforeseen = sum(n for kind in tally.statuses.values() for status, n in kind.items() if status.startswith("500"))
    note = (
        f"{given.clients} clients at once and {given.slow} slow ones for {given.seconds:g} s against 127.0.0.1; "
        f"{sum(map(len, tally.seconds.values()))} answers, {unforeseen} of them 500; the clients share the machine's "
        f"cores with the server; load average {os.getloadavg()[0]:.1f}"
    )
    columns = ["request", "answers", "median ms", "95 % ms", "largest ms", "statuses", "alive", "peak MB"]
    path = record("load-studio", columns, rows, "python benchmarks/load_studio.py", note)
    print(f"{path}\n{note}")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
