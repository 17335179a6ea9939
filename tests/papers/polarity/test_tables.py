"""Every table of Polarity Sampling, made at a size that takes seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likewise.distributions import fashion_features, pretrained
from likewise.errors import InputError
from likewise.papers.polarity import TABLES
from likewise.papers.polarity.tables import Options

pytestmark = [
    pytest.mark.filterwarnings("ignore::likewise.errors.SmallSampleWarning"),
    pytest.mark.filterwarnings("ignore::likewise.errors.DegeneracyWarning"),
]
RUNS = {table.name: table.run for table in TABLES}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of images of another generator, as a file."""
    file = tmp_path_factory.mktemp("real") / "rows.npy"
    np.save(file, fashion_features()(pretrained("fashion-vae").draw(40, seed=7)).numpy())
    return file


@pytest.mark.parametrize(
    ("name", "rows", "column"),
    [
        ("tab3", 6, "frechet"),
        ("c3", 12, "recall"),
        pytest.param("c4", 7, "bits a pixel", marks=pytest.mark.slow),
        pytest.param("c5", 7, "step 0.3", marks=pytest.mark.slow),
        ("fig11", 12, "total variation"),
        ("fig13", 7, "distance to law"),
        pytest.param("precision-recall", 63, "precision", marks=pytest.mark.slow),
    ],
)
def test_a_table_has_its_rows_with_errors(name: str, rows: int, column: str, real: Path) -> None:
    generator = "fashion-vae" if name == "c4" else "fashion"
    record = RUNS[name](Options(generator=generator, real=str(real), n=16, banks=2))
    assert len(record.rows) == rows
    assert {column, f"{column} ±", "ess"} <= set(record.columns)
    assert all(0 < row["ess"] <= 1 for row in record.rows)
    plain = [row for row in record.rows if row["rho"] == 0]
    assert all(row["ess"] == 1 for row in plain)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="real: expected a folder"):
        RUNS["tab3"](Options(n=8, banks=2))
    with pytest.raises(InputError, match="only fashion-vae gives a likelihood"):
        RUNS["c4"](Options())
