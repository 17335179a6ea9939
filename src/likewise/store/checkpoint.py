"""Models and arrays on disk: safetensors with a JSON header and a checksum, written atomically, never unpickled.

A model that can be saved offers `state() -> (arrays, header)` and a class method `from_state(arrays, header)`, and its
class stands in the table below under a short name. Only names in that table can be loaded: a file cannot name code.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from likewise import __version__, media
from likewise.errors import FileError, InputError

JSON = Any
"""A value that `json.dumps` takes and that `json.loads` gives back."""
Arrays = dict[str, NDArray[Any]]

FORMAT = 1
"""The version of the layout of a checkpoint; a newer one is refused, not guessed at."""
MOST_HEADER = 16 * 2**20
"""The longest header, in bytes, that is read."""

_CLASSES: dict[str, str] = {
    "images.Embedder": "likewise.images.embedder:Embedder",
    "pixels.Aligner": "likewise.pixels.aligner:Aligner",
    "pixels.RAFT": "likewise.pixels.raft:RAFT",
    "sets.WassersteinLMNN": "likewise.sets.lmnn:WassersteinLMNN",
}


class Storable(Protocol):
    """What `save` needs of a model. A class may name in `nan_allowed` the arrays that may hold NaN or infinity."""

    def state(self) -> tuple[dict[str, Any], dict[str, JSON]]:
        """The arrays and the JSON header from which `from_state` makes an equal model."""

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, JSON]) -> Self:
        """The model that `state` described."""


def save(model: Storable, path: str | Path) -> None:
    """Write a model to one file; nothing is left half-written.

    Parameters
    ----------
    model : Storable
        A fitted `sets.WassersteinLMNN`, an `images.Embedder`, a `pixels.Aligner` or `pixels.RAFT`.
    path : str or Path
        The file, by custom with the suffix .safetensors; folders above it are made, an older file is replaced.

    Raises
    ------
    InputError
        It is none of these, or an array of the model has NaN or infinity in it.
    FileError
        The file cannot be written.

    Examples
    --------
    >>> import likewise as lw
    >>> import tempfile
    >>> import numpy as np
    >>> X, y = np.array([[0.0, 0], [0, 1], [4, 0], [4, 1]]), ["a", "a", "b", "b"]
    >>> model = lw.sets.WassersteinLMNN(k_targets=1, k_impostors=1, max_iter=2, rounds=1).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lw.save(model, f"{folder}/metric.safetensors")
    ...     again = lw.load(f"{folder}/metric.safetensors")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    media.write_bytes(path, pack(model))


def pack(model: Storable) -> bytes:
    """A model as the bytes that `save` writes."""
    name = _name(type(model))
    arrays, header = model.state()
    arrays = {key: np.asarray(value) for key, value in arrays.items()}
    bad = _not_finite(arrays, type(model))
    if bad is not None:
        raise InputError(f"model: array {bad!r} of {name} contains NaN or infinity; it is not fit to be saved")
    return encode(arrays, {"format": FORMAT, "likewise": __version__, "class": name, "header": header})


def load(path: str | Path) -> Any:
    """Read a model from a file that `save` wrote.

    The file may be a stranger's: it is safetensors, so nothing in it is run, and only classes that this program knows
    are made from it.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    object
        A model equal to the one saved.

    Raises
    ------
    FileError
        The file is missing, damaged, hostile, of another program or of a newer format.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.load("nowhere.safetensors")
    Traceback (most recent call last):
        ...
    likewise.errors.FileError: nowhere.safetensors does not exist
    """
    return _restore(*read(path), path)


def unpack(data: bytes, where: str | Path) -> Any:
    """The model in the bytes that `pack` gave; what is wrong with them is a FileError that starts with `where`."""
    return _restore(*decode(data, where), where)


def _restore(arrays: Arrays, whole: dict[str, JSON], path: str | Path) -> Any:
    cls = _class(whole, path)
    bad = _not_finite(arrays, cls)
    if bad is not None:
        raise FileError(f"{path}: array {bad!r} contains NaN or infinity")
    try:
        return cls.from_state(arrays, whole["header"])
    except Exception as error:  # the file is a stranger's: whatever its contents break is the file's fault
        raise FileError(f"{path} does not hold a {whole['class']}: {_line(error)}") from error


def encode(arrays: Mapping[str, Any], header: Mapping[str, JSON]) -> bytes:
    """Arrays and a JSON header as safetensors bytes: equal contents, equal bytes."""
    plain = {name: _plain(name, arrays[name]) for name in sorted(arrays)}
    text = canonical(header, "header")
    # One metadata entry only: safetensors writes several in no fixed order.
    note = json.dumps({"header": json.loads(text), "sha256": _checksum(plain, text)}, sort_keys=True)
    if len(note) > MOST_HEADER // 2:
        raise InputError(f"header: {len(note)} bytes of JSON is too much; put what is large into arrays")
    return bytes(safetensors.numpy.save(plain, metadata={"likewise": note}))


def write(path: str | Path, arrays: Mapping[str, Any], header: Mapping[str, JSON]) -> None:
    """What `encode` gives, written to a file atomically (safetensors' own writer leaves nameless files when killed)."""
    media.write_bytes(path, encode(arrays, header))


def decode(data: bytes, where: str | Path) -> tuple[Arrays, dict[str, JSON]]:
    """Arrays and header from safetensors bytes; anything wrong with them is a FileError that starts with `where`."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise FileError(f"{where} is truncated, or not a safetensors file")
    if length > MOST_HEADER:
        raise FileError(f"{where} has a header of {length} bytes; at most {MOST_HEADER} are read")
    try:
        # An array must be ours to write to: what `load` gives goes on being trained.
        arrays = {name: np.require(array, requirements="W") for name, array in _tensors(data, where).items()}
        note = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["likewise"])
        header, checksum = note["header"], note["sha256"]
        text = canonical(header, "header")
    except (KeyError, TypeError):
        raise FileError(f"{where} was not written by likewise") from None
    except (SafetensorError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise FileError(f"{where} is damaged: {_line(error)}") from None
    if not isinstance(header, dict):
        raise FileError(f"{where} was not written by likewise")
    if _checksum(arrays, text) != checksum:
        raise FileError(f"{where} is damaged: its contents do not match its checksum")
    return arrays, header


def _tensors(data: bytes, where: str | Path) -> Arrays:
    try:
        arrays: Arrays = safetensors.numpy.load(data)
    except KeyError as error:
        raise FileError(f"{where}: an array has the unknown dtype {error}") from None
    return arrays


def read(path: str | Path) -> tuple[Arrays, dict[str, JSON]]:
    """`decode` the file at `path`."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        data = path.read_bytes()
    except (OSError, MemoryError) as error:
        raise FileError(f"{path} cannot be read: {_line(error)}") from None
    return decode(data, path)


def canonical(value: JSON, where: str) -> str:
    """The one way to write a JSON value that everything hashed here is written in."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_scalar)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {_line(error)}") from None


def _scalar(value: Any) -> Any:
    """A NumPy scalar as the Python number it is."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {str(value)[:60]!r}")


def _plain(name: str, value: Any) -> NDArray[Any]:
    """A little-endian, contiguous array of a kind that safetensors holds."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InputError(f"array {name!r}: expected whole or floating numbers or booleans, got dtype {array.dtype}")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _checksum(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    """sha256 of the header and of each array's name, dtype, shape and bytes, in the order of names."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.newbyteorder("<").str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _not_finite(arrays: Mapping[str, NDArray[Any]], cls: Any) -> str | None:
    """The first array with NaN or infinity in it that its class does not allow."""
    allowed = getattr(cls, "nan_allowed", ())
    for name, array in sorted(arrays.items()):
        if name not in allowed and array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return None


def _name(cls: type) -> str:
    """The short name of a registered class."""
    home = f"{cls.__module__}:{cls.__qualname__}"
    for name, known in _CLASSES.items():
        if known == home:
            return name
    raise InputError(f"model: {cls.__qualname__} cannot be saved; known are: {', '.join(sorted(_CLASSES))}")


def _class(whole: Mapping[str, JSON], path: str | Path) -> Any:
    """The class that a checkpoint's header names, if this version may load it."""
    if not {"format", "likewise", "class", "header"} <= set(whole) or not isinstance(whole["header"], dict):
        raise FileError(f"{path} is not a checkpoint of likewise")
    if whole["format"] != FORMAT:
        raise FileError(
            f"{path} is of format {str(whole['format'])[:20]}, written by likewise {str(whole['likewise'])[:20]}; "
            f"this likewise reads format {FORMAT}"
        )
    home = _CLASSES.get(whole["class"]) if isinstance(whole["class"], str) else None
    if home is None:
        known = ", ".join(sorted(_CLASSES))
        raise FileError(f"{path} holds a {str(whole['class'])[:60]!r}, which is not known; known are: {known}")
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def _line(error: BaseException) -> str:
    """An error's message in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"
