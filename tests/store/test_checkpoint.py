"""Checkpoints: equal after a round trip, a FileError for whatever is wrong with the file, never code from a file."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import likewise as lw
from likewise.store import checkpoint


class Toy:
    """A model of two arrays and a header, for these tests."""

    nan_allowed: ClassVar[frozenset[str]] = frozenset({"history"})

    def __init__(self, M: Any, history: Any, note: str = "") -> None:
        self.M, self.history, self.note = np.asarray(M), np.asarray(history), note

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"M": self.M, "history": self.history}, {"note": self.note, "size": len(self.M)}

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Toy:
        if arrays["M"].shape != (header["size"],) * 2:
            raise ValueError("M is not square")
        return cls(arrays["M"], arrays["history"], header["note"])

    def same(self, other: Toy) -> bool:
        pairs = [(self.M, other.M), (self.history, other.history)]
        return self.note == other.note and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs
        )


class Stranger(Toy):
    """In no table."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint._CLASSES, "tests.Toy", f"{__name__}:Toy")


TOY = Toy(np.eye(3) * 2, [1.0, np.nan], "größer")


def header(**changes: Any) -> dict[str, Any]:
    inner = TOY.state()[1]
    return {"format": 1, "likewise": "0.1.0", "class": "tests.Toy", "header": inner} | changes


def file(path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A checkpoint with a right checksum, as a stranger could make it."""
    path.write_bytes(checkpoint.encode(TOY.state()[0] | (arrays or {}), header(**changes)))
    return path


def load_or_complaint(path: Path) -> Any:
    try:
        return lw.load(path)
    except lw.LikewiseError as error:
        return str(error)


def test_round_trip(tmp_path: Path) -> None:
    lw.save(TOY, tmp_path / "toy.safetensors")
    back = lw.load(tmp_path / "toy.safetensors")
    assert isinstance(back, Toy)
    assert TOY.same(back)
    assert not TOY.same(Toy(TOY.M, TOY.history, "other"))
    back.M[0, 0] = 7  # what is loaded can be written to


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    lw.save(TOY, tmp_path / "toy.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "toy.safetensors")
    np.testing.assert_array_equal(arrays["M"], TOY.M)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda s: s != "__metadata__"),
        hnp.arrays(
            st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.dtype(">f8")]),
            hnp.array_shapes(min_dims=0, min_side=0),
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
)
def test_encode_decode(arrays: dict[str, Any], head: dict[str, Any]) -> None:
    data = checkpoint.encode(arrays, head)
    back, head_back = checkpoint.decode(data, "x")
    assert head_back == head
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, strict=array.dtype.byteorder != ">")
    assert checkpoint.encode(dict(reversed(arrays.items())), dict(reversed(head.items()))) == data


def test_written_bytes_are_the_encoded_bytes(tmp_path: Path) -> None:
    arrays, head = {"b": np.arange(3), "a": np.eye(2), "c": np.zeros((0, 4)), "d": np.array(True)}, {"x": [1, "y"]}
    checkpoint.write(tmp_path / "x", arrays, head)
    assert (tmp_path / "x").read_bytes() == checkpoint.encode(arrays, head)
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_views_are_stored_as_they_look() -> None:
    A = np.arange(12.0).reshape(3, 4)
    back, _ = checkpoint.decode(checkpoint.encode({"T": A.T, "S": A[:, ::2]}, {}), "x")
    np.testing.assert_array_equal(back["T"], A.T)
    np.testing.assert_array_equal(back["S"], A[:, ::2])


GOOD = checkpoint.encode(TOY.state()[0], header())


@given(st.data())
def test_mutated_bytes_are_an_error_or_an_equal_load(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bad = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.sampled_from([0, 8, len(bad) - min(len(bad), 64)]))  # length, header, arrays
        at = data.draw(st.integers(min(first, len(bad) - 1), len(bad) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "delete"]))
        if kind == "set":
            bad[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del bad[max(at, 1) :]
        elif kind == "insert":
            bad[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif len(bad) > 1:
            del bad[at]
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(bad)
    loaded = load_or_complaint(path)
    if isinstance(loaded, str):
        assert str(path) in loaded
        assert "\n" not in loaded
    else:
        assert TOY.same(loaded)


def test_every_single_byte_matters(tmp_path: Path) -> None:
    path = tmp_path / "flipped.safetensors"
    for at in range(len(GOOD)):
        path.write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])
        loaded = load_or_complaint(path)
        assert isinstance(loaded, str) or TOY.same(loaded), at


def test_truncated(tmp_path: Path) -> None:
    for keep in (0, 4, 8, 40, len(GOOD) - 1):
        (tmp_path / "t.safetensors").write_bytes(GOOD[:keep])
        with pytest.raises(lw.FileError, match=r"t\.safetensors.*(truncated|damaged)"):
            lw.load(tmp_path / "t.safetensors")


def test_huge_header(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(lw.FileError, match="truncated"):
        lw.load(path)
    with path.open("wb") as stream:  # a sparse file: as long as its header says
        stream.write(struct.pack("<Q", checkpoint.MOST_HEADER + 1))
        stream.truncate(checkpoint.MOST_HEADER + 100)
    with pytest.raises(lw.FileError, match=r"header of \d+ bytes"):
        lw.load(path)


def test_deep_json_is_an_error(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = json.dumps({"__metadata__": {"likewise": deep}}).encode()
    (tmp_path / "deep").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(lw.FileError, match="damaged"):
        lw.load(tmp_path / "deep")


def test_foreign_files(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"M": np.eye(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(lw.FileError, match="not written by likewise"):
        lw.load(tmp_path / "foreign.safetensors")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(TOY.state()))
    with pytest.raises(lw.FileError, match=r"model\.pkl"):
        lw.load(tmp_path / "model.pkl")
    (tmp_path / "shard").write_bytes(checkpoint.encode({}, {"job": "x"}))
    with pytest.raises(lw.FileError, match="not a checkpoint"):
        lw.load(tmp_path / "shard")


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path, "not a file"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(lw.FileError, match=why):
            lw.load(path)


def test_unknown_class_is_not_imported(tmp_path: Path) -> None:
    for name in ("os:system", "Nothing", ["tests.Toy"], None):
        with pytest.raises(lw.FileError, match="is not known"):
            lw.load(file(tmp_path / "x", **{"class": name}))


def test_another_format(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match=r"format 2, written by likewise 9\.9"):
        lw.load(file(tmp_path / "x", format=2, likewise="9.9"))


def test_contents_that_the_class_refuses(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match=r"does not hold a tests\.Toy: M is not square"):
        lw.load(file(tmp_path / "x", {"M": np.zeros((2, 5))}))
    with pytest.raises(lw.FileError, match="does not hold"):
        lw.load(file(tmp_path / "x", header={}))


def test_nan_only_where_it_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="'M' contains NaN"):
        lw.load(file(tmp_path / "x", {"M": np.full((3, 3), np.nan)}))
    with pytest.raises(lw.InputError, match=r"'M' of tests\.Toy contains NaN"):
        lw.save(Toy([[np.inf]], [0.0]), tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_dtypes_that_cannot_be_held(tmp_path: Path) -> None:
    for bad in (np.array(["a"]), np.array([None]), np.zeros(2, complex), np.zeros(2, "datetime64[s]")):
        with pytest.raises(lw.InputError, match=r"array 'a'.*dtype"):
            checkpoint.encode({"a": bad}, {})
    data = bytearray(GOOD)
    at = data.index(b'"F64"')
    data[at : at + 5] = b'"C64"'
    with pytest.raises(lw.FileError, match=r"dtype|damaged"):
        checkpoint.decode(bytes(data), "x")


def test_only_known_classes_are_saved(tmp_path: Path) -> None:
    with pytest.raises(lw.InputError, match=r"Stranger cannot be saved; known are: .*sets\.WassersteinLMNN"):
        lw.save(Stranger(np.eye(2), [0.0]), tmp_path / "x")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy.safetensors"
    lw.save(TOY, path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        lw.save(Toy(np.eye(2), [0.0]), path)
    assert [p.name for p in tmp_path.iterdir()] == ["toy.safetensors"]
    assert path.read_bytes() == before


def test_header_that_is_not_json() -> None:
    with pytest.raises(lw.InputError, match="header is not JSON"):
        checkpoint.encode({}, {"x": object()})
    with pytest.raises(lw.InputError, match="header is not JSON"):
        checkpoint.encode({}, {"x": float("nan")})
    assert checkpoint.decode(checkpoint.encode({}, {"x": np.float64(2.5)}), "x")[1] == {"x": 2.5}
