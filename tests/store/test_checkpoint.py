"""Checkpoints: equal after a round trip, a FileError for whatever is wrong with the file, never code from a file."""

from __future__ import annotations

import contextlib
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


def made(arrays: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A checkpoint with a right checksum, as a stranger could make it."""
    return checkpoint.encode(TOY.state()[0] | (arrays or {}), header(**changes))


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


def test_every_single_byte_matters(tmp_path: Path) -> None:
    path = tmp_path / "flipped.safetensors"
    for at in range(len(GOOD)):
        path.write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])
        with contextlib.suppress(lw.FileError):
            assert TOY.same(lw.load(path)), at


DEEP = json.dumps({"__metadata__": {"likewise": "[" * 100_000 + "]" * 100_000}}).encode()
REFUSED = {
    **{f"cut at {keep}": (GOOD[:keep], "truncated|damaged") for keep in (0, 4, 8, 40, len(GOOD) - 1)},
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "truncated"),
    "long header": (struct.pack("<Q", checkpoint.MOST_HEADER + 1) + bytes(checkpoint.MOST_HEADER + 92), "header of"),
    "deep JSON": (struct.pack("<Q", len(DEEP)) + DEEP, "damaged"),
    "foreign": (safetensors.numpy.save({"M": np.eye(2)}), "not written by likewise"),
    "pickle": (pickle.dumps(TOY.state()), "truncated|damaged"),
    "shard": (checkpoint.encode({}, {"job": "x"}), "not a checkpoint"),
    **{f"class {name}": (made(**{"class": name}), "is not known") for name in ("os:system", "Nothing", ["a"], None)},
    "newer format": (made(format=2, likewise="9.9"), r"format 2, written by likewise 9\.9"),
    "odd shape": (made({"M": np.zeros((2, 5))}), r"does not hold a tests\.Toy: M is not square"),
    "no header": (made(header={}), "does not hold"),
    "NaN": (made({"M": np.full((3, 3), np.nan)}), "'M' contains NaN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    data, words = REFUSED[name]
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(lw.FileError, match=words) as caught:
        lw.load(tmp_path / "x.bin")
    assert str(tmp_path / "x.bin") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in ((".", "not a file"), ("none", "does not exist"), ("pipe", "not a file")):
        with pytest.raises(lw.FileError, match=why):
            lw.load(tmp_path / name)


def test_nan_is_not_saved(tmp_path: Path) -> None:
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
