"""What every test shares: one thread, the same Hypothesis examples each time, the data folder, the slow lane."""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("local", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that are marked slow, too")
    parser.addoption("--browser", action="store_true", help="run the tests that need a browser, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for lane in ("slow", "browser"):
        for item in items:
            if lane in item.keywords and not config.getoption(f"--{lane}"):
                item.add_marker(pytest.mark.skip(reason=f"{lane}: pytest --{lane} runs it"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real data sets, from the environment variable LIKEWISE_DATA."""
    folder = os.environ.get("LIKEWISE_DATA")
    if not folder:
        pytest.skip("LIKEWISE_DATA is not set: this test needs the folder with real data sets")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"LIKEWISE_DATA={folder} is not a folder: this test needs real data sets")
    return path
