"""Arrays of Python objects out of an .npz, without unpickling: what is data is built, nothing is ever called.

NumPy stores an array of objects as a pickle. This reads the instructions of such a pickle with the standard library's
disassembler and follows only those that make plain data: numbers, strings, tuples, lists, dicts, and NumPy's own
arrays, dtypes and scalars, which are rebuilt here from their bytes. Any other name in it is a FileError.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError
from likewise.media import MOST_ARRAY_BYTES, is_text

_MARK = object()


def object_arrays(
    path: str | os.PathLike[str], names: Iterable[str] | None = None, *, most_bytes: int = MOST_ARRAY_BYTES
) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, those of objects, too; with `names` only these, as far as it has them."""
    wanted = None if names is None else set(names)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            chosen = {k: m for k, m in members.items() if wanted is None or k in wanted}
            total = sum(m.file_size for m in chosen.values())
            if total > most_bytes:
                raise FileError(f"{path}: declares {total:,} bytes, more than {most_bytes:,} allowed")
            return {k: _array(archive.read(m), m.file_size) for k, m in chosen.items()}
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except FileError:
        raise
    except Exception as error:  # a damaged archive or a hostile pickle can lead anywhere
        raise FileError(f"{path}: cannot be read as plain arrays: {error or type(error).__name__}") from None


def _array(data: bytes, size: int) -> NDArray[Any]:
    """One member: its header, then the numbers themselves, or the instructions that make objects."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        found = rebuilt(stream.read())
        if not isinstance(found, np.ndarray):  # NumPy pickles the array itself
            raise ValueError(f"a {type(found).__name__} where an array was expected")
        return found
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"shape {shape} in {size:,} bytes")
    flat = _checked(np.frombuffer(stream.read(), dtype=dtype, count=math.prod(shape)))
    return flat.reshape(shape, order="F" if fortran else "C")


def rebuilt(pickled: bytes) -> Any:
    """The plain data that a pickle describes; a ValueError where it describes anything else."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(pickled):
        machine.follow(opcode.name, argument)
    if len(machine.stack) != 1:
        raise ValueError("a pickle that leaves nothing, or too much")
    return _settled(machine.stack[0])


# -------------------------------------------------------------------------------------------- what stands for NumPy's


class _Name:
    """A name that unpickling would look up and call; here it only stands for itself."""

    def __init__(self, module: str, name: str) -> None:
        self.key = f"{module.replace('numpy._core', 'numpy.core')}.{name}"


class _Dtype:
    """A dtype: letter and size, such as f8 or O8, and its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.order = str(code), "<"

    def build(self, state: Any) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "|"

    def finished(self) -> np.dtype[Any] | None:
        """The dtype, or None for objects."""
        if self.code[:1] == "O":
            return None
        if self.code[:1] not in tuple("biufSU") or not self.code[1:].isdecimal():
            raise ValueError(f"an array of type {self.code!r}")
        return np.dtype(self.order + self.code)


class _Array:
    """An array that gets its shape and content later."""

    value: NDArray[Any] | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        known = dtype.finished()
        if known is None:
            flat = np.empty(len(content), dtype=object)
            for i, item in enumerate(content):
                flat[i] = item
        else:
            flat = _checked(np.frombuffer(_bytes(content), dtype=known))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _checked(flat: NDArray[Any]) -> NDArray[Any]:
    """The same array, unless it is to be text and is none."""
    if flat.dtype.names is not None or not is_text(flat):
        raise ValueError("records, or text that is not Unicode")
    return flat


def _bytes(content: Any) -> bytes:
    return content.encode("latin1") if isinstance(content, str) else bytes(content)


def _settled(item: Any) -> Any:
    """An array for what stands for it; a name or an array without content is no data."""
    if isinstance(item, _Array):
        item = item.value
    if item is None or not isinstance(item, _Name | _Dtype):
        return item
    raise ValueError(f"{getattr(item, 'key', 'a dtype')} where data was expected")


def _scalar(dtype: _Dtype, content: Any = b"") -> Any:
    known = dtype.finished()
    if known is None:
        raise ValueError("a scalar object")
    return _checked(np.frombuffer(_bytes(content), dtype=known))[0]


_MADE: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: _Array(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.dtype": lambda code, *_: _Dtype(code),
    "_codecs.encode": lambda text, *_: str(text).encode("latin1"),
    "__builtin__.bytes": lambda: b"",
}
"""What is made where a pickle would call these names; there are no others."""


# --------------------------------------------------------------------------------------------------- the instructions

_NUMBERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_VALUES = _NUMBERS | _STRINGS
_FIXED: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})


class _Machine:
    """The stack and the memo of a pickle, and what each instruction does to them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Do what one instruction says, or refuse."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _FIXED:
            self.stack.append(_FIXED[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name not in _NOTHING:
            if name not in _STEPS:
                raise ValueError(f"the instruction {name}, which plain data does not need")
            _STEPS[name](self, argument)

    def _marked(self) -> list[Any]:
        """What lies above the last mark, which goes with it."""
        place = next((i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK), None)
        if place is None:
            raise ValueError("an instruction without its mark")
        above = self.stack[place + 1 :]
        del self.stack[place:]
        return above

    def _popped(self, n: int) -> list[Any]:
        if len(self.stack) < n:
            raise ValueError("an instruction that finds nothing to work on")
        taken = self.stack[-n:]
        del self.stack[-n:]
        return taken

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._marked())))

    def _tuple1(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(1))))

    def _tuple2(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(2))))

    def _tuple3(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(3))))

    def _append(self, _: Any) -> None:
        (item,) = self._popped(1)
        self._list().append(_settled(item))

    def _appends(self, _: Any) -> None:
        items = self._marked()
        self._list().extend(map(_settled, items))

    def _list(self) -> list[Any]:
        if not self.stack or type(self.stack[-1]) is not list:
            raise ValueError("items for what is no list")
        found: list[Any] = self.stack[-1]
        return found

    def _setitem(self, _: Any) -> None:
        self._filled(self._popped(2))

    def _setitems(self, _: Any) -> None:
        self._filled(self._marked())

    def _filled(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not dict:
            raise ValueError("entries for what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_settled(key)] = _settled(value)

    def _global(self, argument: Any) -> None:
        self.stack.append(_Name(*str(argument).split(" ", 1)))

    def _stack_global(self, _: Any) -> None:
        module, name = self._popped(2)
        self.stack.append(_Name(str(module), str(name)))

    def _reduce(self, _: Any) -> None:
        name, arguments = self._popped(2)
        if not isinstance(name, _Name) or name.key not in _MADE:
            raise ValueError(f"it would call {getattr(name, 'key', 'something')}; only plain data is read")
        self.stack.append(_MADE[name.key](*arguments))

    def _build(self, _: Any) -> None:
        (state,) = self._popped(1)
        if not self.stack or not isinstance(self.stack[-1], _Array | _Dtype):
            raise ValueError("a state for what has none")
        self.stack[-1].build(state)

    def _top(self) -> Any:
        if not self.stack:
            raise ValueError("an instruction that finds nothing to work on")
        return self.stack[-1]

    def _put(self, argument: Any) -> None:
        self.memo[int(argument)] = self._top()

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self._top()

    def _get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": _Machine._tuple,
    "TUPLE1": _Machine._tuple1,
    "TUPLE2": _Machine._tuple2,
    "TUPLE3": _Machine._tuple3,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._setitem,
    "SETITEMS": _Machine._setitems,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "MEMOIZE": _Machine._memoize,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine._put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine._get),
}


def _kept(item: Any) -> Any:
    """In a tuple names and dtypes may stand: they are the arguments and states of NumPy's own makers."""
    return item.value if isinstance(item, _Array) else item
