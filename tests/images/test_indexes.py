"""Indexes that a stranger wrote: what FAISS would believe is checked before it is searched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from likewise.errors import FileError
from likewise.images.stores import indexes
from likewise.images.stores.indexes import Gathered, Index
from likewise.images.stores.segments import sha256


@pytest.fixture(scope="module", params=["ivf", "hnsw"])
def built(request: pytest.FixtureRequest) -> Index:
    rows = np.random.default_rng(0).normal(size=(1200, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    parts = [(np.arange(1200), rows, np.ones(1200, bool))]
    return indexes.build(request.param, Gathered(parts), 0.9)


def again(index: Index, path: Path, **facts: Any) -> Index:
    index.write(path)
    return Index.read(path, sha256(path), {**index.entry(), **facts})


def test_an_index_comes_back(built: Index, tmp_path: Path) -> None:
    queries = np.eye(8, dtype=np.float32)[:3]
    found = again(built, tmp_path / "x.faiss").search(queries, 5)
    assert np.array_equal(found[1], built.search(queries, 5)[1])


@pytest.mark.parametrize("facts", [{"effort": 0}, {"effort": 2**62}, {"rows": 7}, {"rows": 2**60}, {"lists": 2**50}])
def test_facts_that_cannot_be_are_refused(built: Index, tmp_path: Path, facts: dict[str, Any]) -> None:
    """An effort of 0 would be doubled forever."""
    with pytest.raises(FileError, match=r"x\.faiss: (missing, damaged|damaged)"):
        again(built, tmp_path / "x.faiss", **facts)


def test_an_index_of_another_kind_is_refused(built: Index, tmp_path: Path) -> None:
    flat = faiss.IndexIDMap2(faiss.IndexFlatL2(8))
    flat.add_with_ids(np.zeros((1200, 8), np.float32), np.arange(1200))
    with pytest.raises(FileError, match="not an index that this gallery would write"):
        again(Index(flat, built.facts), tmp_path / "x.faiss")


def test_links_beyond_the_rows_are_refused(built: Index, tmp_path: Path) -> None:
    if built.facts.kind != "hnsw":
        pytest.skip("lists have no links")
    path = tmp_path / "x.faiss"
    built.write(path)
    graph = faiss.downcast_index(built.inner.index).hnsw
    links = faiss.vector_to_array(graph.neighbors).astype("<i4")
    data = path.read_bytes()
    at = data.find(links.tobytes())
    assert at > 0
    for wrong in (1200, 2**31 - 1, -7):
        path.write_bytes(data[:at] + np.array([wrong], "<i4").tobytes() + data[at + 4 :])
        with pytest.raises(FileError, match=r"x\.faiss: (damaged|cannot be read)"):
            Index.read(path, sha256(path), built.entry())


def test_rows_of_another_length_are_refused(built: Index) -> None:
    with pytest.raises(FileError, match="holds rows of 8 numbers where the gallery has 5"):
        built.search(np.zeros((1, 5), np.float32), 3)


def test_an_index_is_searched_beside_pytorch_metric_learning(tmp_path: Path) -> None:
    """faiss.contrib.torch_utils, which that library imports, replaces Index.search for the whole process."""
    pytest.importorskip("pytorch_metric_learning")
    program = f"""
import pytorch_metric_learning.utils.inference, faiss.contrib.torch_utils
import numpy as np
from likewise.images.stores import indexes
assert faiss.Index.search.__name__.startswith("torch_replacement")
rows = np.random.default_rng(0).normal(size=(1200, 8)).astype(np.float32)
for kind in ("ivf", "hnsw"):
    index = indexes.build(kind, indexes.Gathered([(np.arange(1200), rows, np.ones(1200, bool))]), 0.9)
    index.write(__import__("pathlib").Path({str(tmp_path)!r}, kind + ".faiss"))
    assert (index.search(rows[:5], 3)[1][:, 0] == np.arange(5)).all()
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
