"""MATLAB files: what SciPy reads of them, and a FileError for what is wrong with them."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from likewise import bounded, media
from likewise.errors import FileError
from tests.worlds.layouts import cells


def same(a: Any, b: Any) -> bool:
    """Equal arrays, cell by cell and field by field."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.names != b.dtype.names:
        return False
    if a.dtype.names:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    if a.dtype == object:
        return all(same(x, y) for x, y in zip(a.ravel(), b.ravel(), strict=True))
    return a.dtype.kind == b.dtype.kind and bool(np.array_equal(a, b))


VALUES: dict[str, Any] = {
    "doubles": np.arange(6.0).reshape(2, 3),
    "bytes": np.arange(4, dtype=np.uint8),
    "long": np.array([[2**40, -3]]),
    "truth": np.array([[True, False]]),
    "imaginary": np.array([[1 + 2j, 3 - 1j]]),
    "cube": np.arange(24.0).reshape(2, 3, 4),
    "word": "wörter",
    "rows": np.array(["abc", "def"]),
    "cells": cells([[1.0, "two"], [np.eye(2), cells([["three", 4.0]])]]),
    "struct": {"root": "name", "class": 3.0, "inner": {"a": np.arange(3.0)}},
    "none": np.empty((0, 3)),
}


def test_the_comparison_can_fail() -> None:
    assert not same(np.array([[1.0]]), np.array([[2.0]]))
    assert not same(cells([[1.0, "two"]]), cells([[1.0, "three"]]))


@pytest.mark.parametrize("packed", [False, True])
def test_what_scipy_reads(tmp_path: Path, packed: bool) -> None:
    savemat(tmp_path / "x.mat", VALUES, do_compression=packed)
    theirs, ours = loadmat(tmp_path / "x.mat"), media.read_mat(tmp_path / "x.mat", VALUES)
    assert [name for name in VALUES if not same(ours[name], theirs[name])] == []
    assert list(media.read_mat(tmp_path / "x.mat", ["word", "absent"])) == ["word"]


def test_version_4(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"a": np.arange(6.0).reshape(2, 3), "b": np.array([[1, 2]], np.int32)}, format="4")
    result = media.read_mat(tmp_path / "x.mat", ["a", "b"])
    assert same(result["a"], np.arange(6.0).reshape(2, 3))
    assert same(result["b"], np.array([[1, 2]]))


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def matrix(kind: int, shape: tuple[int, ...], content: bytes, name: bytes = b"x") -> bytes:
    sizes = struct.pack(f"<{len(shape)}i", *shape)
    head = element(6, struct.pack("<II", kind, 0)) + element(5, sizes) + element(1, name)
    return element(14, head + content)


def file(path: Path, content: bytes) -> Path:
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + content)
    return path


def nested(depth: int) -> bytes:
    inner = matrix(6, (1, 1), element(9, bytes(8)), b"")
    for level in range(depth):
        inner = matrix(1, (1, 1), inner, b"x" if level == depth - 1 else b"")
    return inner


@pytest.mark.parametrize(
    "content",
    [
        matrix(6, (2, 2), element(9, bytes(8))),
        matrix(1, (2**31 - 1, 2**31 - 1), b""),
        element(15, zlib.compress(bytes(8))),
        matrix(6, (1, 1), element(9, bytes(8)))[:-4],
        struct.pack("<II", 14, 2**32 - 1),
    ],
    ids=["too few numbers", "huge cells", "no variable", "truncated", "huge element"],
)
def test_what_is_damaged_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FileError, match="not a readable MATLAB file"):
        media.read_mat(file(tmp_path / "x.mat", content), ["x"])


def test_a_crash_of_the_reader_is_a_file_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bounded.call
    monkeypatch.setattr(bounded, "call", lambda *_, name, **how: real("os:abort", name=name))
    with pytest.raises(FileError, match=r"x\.mat: damaged: its decoder crashed \(SIGABRT\)"):
        media.read_mat(file(tmp_path / "x.mat", matrix(6, (1, 1), element(9, bytes(8)))), ["x"])


def test_what_the_reader_says_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is a pickle: names other than those of arrays are refused, and nothing is called."""
    wicked = np.frombuffer(pickle.dumps(os.getcwd), np.uint8)
    monkeypatch.setattr(bounded, "call", lambda *_, **__: wicked)
    with pytest.raises(FileError, match=r"names posix\.getcwd, which arrays do not need"):
        media.read_mat(file(tmp_path / "x.mat", matrix(6, (1, 1), element(9, bytes(8)))), ["x"])


def test_a_variable_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    bomb = matrix(6, (1, 200_000), element(9, bytes(1_600_000)))
    path = file(tmp_path / "x.mat", struct.pack("<II", 15, len(zlib.compress(bomb))) + zlib.compress(bomb))
    assert media.read_mat(path, ["x"])["x"].shape == (1, 200_000)
    with pytest.raises(FileError, match="too large"):
        media.read_mat(path, ["x"], most_bytes=100_000)


def test_files_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        media.read_mat(tmp_path / "none.mat", ["x"])
    (tmp_path / "h.mat").write_bytes(b"MATLAB 7.3".ljust(124) + b"\0\2IM" + bytes(64))
    with pytest.raises(FileError, match=r"HDF reader for matlab v7\.3"):
        media.read_mat(tmp_path / "h.mat", ["x"])
