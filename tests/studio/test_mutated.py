"""Mutated files and requests at the studio's routes: an answer, or a refusal in a sentence; never a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from tests.fuzz import forms, mutations, seeds

FILES: dict[str, tuple[Callable[[Path], Any], str, Callable[..., bytes]]] = {
    "png": (seeds.pictures("png"), "api/pictures", forms.png),
    "jpeg": (seeds.pictures("jpeg"), "api/pictures", mutations.bytewise),
    "webp": (seeds.pictures("webp"), "api/pictures", mutations.bytewise),
    "tiff": (seeds.pictures("tiff"), "api/pictures", forms.words32),
    "gif": (seeds.pictures("gif"), "api/pictures", mutations.bytewise),
    "video": (seeds.video, "api/videos", mutations.bytewise),
}
BODIES = {
    "api/sets/plan": {"key": "x", "gamma": 0.1, "metric": "identity"},
    "api/distributions/grid": {"key": "x", "rho": -1.0, "psi": 1.0, "seed": 0},
    "api/distributions/point": {"key": "x", "rho": -1.0, "psi": 1.0},
    "api/pixels/point": {"key": "x", "x": 4.0, "y": 5.0},
    "api/images/duplicates": {"source": "x"},
    "api/images/gallery": {"source": "x"},
    "api/images/map": {"source": "x"},
    "api/runs/read": {"id": "x", "since": 3},
    "api/runs/cancel": {"id": "x"},
    "api/pixels/compare": {"a": "x", "b": "y"},
    "api/images/open": {"source": "x"},
    "api/images/search": {"source": "x", "query": "y", "k": 5, "verify": 2, "since": "2024-01-31"},
    "api/images/why": {"a": "x", "b": "y"},
    "api/sets/compare": {"a": ["x", "y"], "b": ["z"]},
    "api/sets/learn": {"key": "x"},
    "api/distributions/open": {"name": "x"},
    "api/distributions/measure": {"key": "x"},
}
TOLD = (400, 404, 408, 413, 422)
"""How a request is refused."""


def defect(answer: httpx.Response) -> str | None:
    """What is wrong with an answer: a status that none of ours gives, or words that are not a sentence of ours."""
    if answer.status_code == 200:
        return None
    said = answer.json() if answer.status_code in TOLD else {}
    error = str(said.get("error"))
    ours = set(said) == {"error"} and len(error) <= 1000 and "unexpected" not in error and "upload-" not in error
    return None if ours else f"{answer.status_code}: {answer.text[:200]}"


@pytest.mark.parametrize(("seed", "count"), [(1, 25), pytest.param(2, 150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FILES)
def test_a_mutated_file_is_taken_or_refused(
    client: httpx.Client, tmp_path: Path, kind: str, seed: int, count: int
) -> None:
    if kind == "video":
        pytest.importorskip("av")
    seeds_of, route, mutation = FILES[kind]
    seeds_of(tmp_path)
    valid = [p.read_bytes() for p in sorted(tmp_path.iterdir())]
    # What is mutated would be taken as it is: refusals are for the mutation's sake.
    assert 200 in [client.post(route, content=data).status_code for data in valid]
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        data = (mutation if rng.random() < 0.7 else mutations.bytewise)(valid[number % len(valid)], rng)
        name = quote(mutations.pick(rng, mutations.WORDS), errors="replace") if rng.random() < 0.5 else "a.jpg"
        answer = client.post(route, content=data, headers={"X-Name": name})
        assert defect(answer) is None, number
    assert client.get("api/about").status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_a_mutated_request_is_refused_in_a_sentence(client: httpx.Client, path: str) -> None:
    for number in range(40):
        rng = np.random.default_rng([3, number])
        answer = client.post(path, content=mutations.as_json(mutations.to_json(BODIES[path]), rng))
        assert defect(answer) is None, number
        if answer.headers.get("content-type") == "application/x-ndjson":  # a job; its last line tells how it ended
            last = json.loads(answer.text.splitlines()[-1])
            assert last["state"] == "failed", number
            assert "unexpected" not in last["error"], number
