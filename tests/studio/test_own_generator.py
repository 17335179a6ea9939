"""A generator and real pictures of the user's own, as the command line gives them to the studio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from likewise.errors import FileError
from likewise.studio import distributions
from likewise.studio.app import Given, Session

from .conftest import answering, lines_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::likewise.errors.SmallSampleWarning"),
    pytest.mark.filterwarnings("ignore::likewise.errors.DegeneracyWarning"),
]

PROGRAM = """
import torch
from likewise.distributions import Generator, Normal

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 3 * 16 * 16), torch.nn.Sigmoid(), torch.nn.Unflatten(1, (3, 16, 16)))
pictures = Generator(net, Normal(3))
numbers = Generator(torch.nn.Linear(3, 5), Normal(3))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's program and forty of the user's pictures."""
    root = tmp_path_factory.mktemp("mine")
    (root / "mine.py").write_text(PROGRAM)
    (root / "real").mkdir()
    draw = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / "real" / f"{i}.png")
    return root


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OWN_LATENTS": 24, "SHARD": 12, "MEASURED": 20, "RHOS": (0.0, 1.0)}.items():
        monkeypatch.setattr(distributions, name, value)


@pytest.fixture
def opened(place: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, list[Any]]]:
    """A studio that was given a generator, and the lines of opening it."""
    name = f"{place / 'mine.py'}:{request.param}"
    session = Session(Given(generator=name, real=place / "real"), cache=tmp_path)
    with answering(session) as client:
        assert client.get("api/distributions/generators").json()[0]["name"] == name
        yield client, lines_of(client, "api/distributions/open", {"name": name})
    session.close()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("opened", ["pictures"], indirect=True)
def test_a_generator_of_ones_own_is_measured_against_ones_own_pictures(opened: Any, place: Path) -> None:
    client, lines = opened
    assert lines[-1]["state"] == "done", lines[-1]
    found = lines[-1]["result"]
    assert found["n"] == 24
    assert [p["rho"] for p in found["curve"]] == [0, 1]
    assert str(place / "real") in found["words"]
    grid = client.post("api/distributions/grid", json={"key": found["key"], "rho": -1, "psi": 0.7, "n": 4}).json()
    assert grid["image"].startswith("data:image/png;base64,")
    point = client.post("api/distributions/point", json={"key": found["key"], "rho": 0, "psi": 0.5}).json()
    assert point["frechet"] > 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("opened", ["numbers"], indirect=True)
def test_a_generator_of_no_pictures_says_so(opened: Any) -> None:
    last = opened[1][-1]
    assert last["state"] == "failed"
    assert "image" in last["error"]


@pytest.mark.parametrize("name", ["nothing.safetensors", "nobody", "no/such/folder/weights.pth"])
def test_a_generator_that_is_not_there_is_refused_before_the_server_begins(name: str) -> None:
    with pytest.raises(FileError, match=f"{name}: no such file"):
        Given(generator=name)


def test_what_may_be_a_generator_is_not_opened_yet(place: Path) -> None:
    for name in ("fashion", "some.module:attribute", f"{place / 'mine.py'}:pictures", str(place / "mine.py")):
        assert Given(generator=name).generator == name
