"""Snapshots of StyleGAN2-ada-pytorch and StyleGAN3 (.pkl), read without running anything that is in them.

A pickle is a program for a machine with a stack. This file is such a machine that can only build: a name becomes a
`Thing`, what the pickle wants called becomes a `Thing` with the arguments, and nothing is ever imported or called.
Modules, tensors and numbers are then read off the things; names that a snapshot does not need are refused.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from likewise.errors import FileError, InputError
from likewise.nn.pretrained import MOST_BYTES

MOST_DEPTH, MOST_MODULES = 16, 10_000
"""Of the tree of modules; official networks have 5 and some hundreds."""

RECORD = "torch_utils.persistence._reconstruct_persistent_obj"
LEGACY = "dnnlib.tflib.network.Network"
"""A snapshot of the TensorFlow code, whose network is source text."""
DICTS = frozenset({"collections.OrderedDict", "dnnlib.util.EasyDict"})
NAMES = re.compile(
    r"torch_utils\.persistence\._reconstruct_persistent_obj|torch\._utils\._rebuild_(parameter|tensor_v2)"
    r"|torch\.storage\._load_from_bytes|numpy\.(core|_core)\.multiarray\.(scalar|_reconstruct)"
    r"|numpy\.(core|_core)\.numeric\._frombuffer|numpy\.(dtype|ndarray)"
    r"|(builtins|__builtin__)\.set|torch\.(device|Size|[a-z]+\d+|[A-Z]\w+Storage)"
    r"|torch\.nn\.modules\.\w+\.\w+|collections\.OrderedDict|dnnlib\.util\.EasyDict"
)
"""All that snapshots are made of. None of these is called: a name outside is a sign that the file is something else."""

_STORAGES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2"}
_STORAGES |= {"Byte": "<u1", "Char": "<i1", "Bool": "?"}
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save began before it wrote archives; the bytes of a tensor inside a pickle still do."""


@dataclass(eq=False, slots=True)
class Thing:
    """What a pickle would import, or would have called with `args` and given a `state`."""

    name: str
    args: Any = None
    state: Any = None


@dataclass(eq=False)
class Module:
    """A module of a snapshot: its class by name, its attributes, tensors and modules inside."""

    kind: str
    said: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)

    def state(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors under the keys of a state dict."""
        own = {prefix + name: tensor for name, tensor in self.tensors.items()}
        inner = (part.state(f"{prefix}{name}.") for name, part in self.modules.items())
        return {**own, **{key: tensor for tensors in inner for key, tensor in tensors.items()}}

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all in it, by their paths."""
        yield prefix.removesuffix("."), self
        for name, part in self.modules.items():
            yield from part.walk(f"{prefix}{name}.")

    def __getitem__(self, name: str) -> Any:
        """An attribute as plain numbers, text and lists."""
        if name not in self.said:
            raise InputError(f"its {self.kind} has no {name}; only the official StyleGAN2 and 3 are read")
        return _plain(self.said[name])


def is_snapshot(path: Path) -> bool:
    """Whether a file is a plain pickle, which torch.save does not write."""
    with path.open("rb") as stream:
        head = stream.read(len(_MAGIC))
    return head[:1] == b"\x80" and head != _MAGIC


def read_snapshot(path: Path, part: str = "G_ema") -> Module:
    """The network `part` of a snapshot; a FileError in one line where the file is anything else."""
    if path.stat().st_size > MOST_BYTES:
        raise FileError(f"{path}: longer than {MOST_BYTES:,} bytes")
    data = path.read_bytes()
    try:
        held, _ = _built(data)
        if isinstance(held, dict):
            if not isinstance(held.get(part), Thing):
                have = ", ".join(str(key) for key, value in list(held.items())[:8] if isinstance(value, Thing))
                raise InputError(f"part: there is no network {str(part)[:40]!r} in it; there is {have[:200] or 'none'}")
            held = held[part]
        return _Reading(len(data)).module(held)
    except InputError as error:
        raise FileError(f"{path}: {error}") from None
    except Exception as error:  # a damaged stream can break anything
        words = " ".join(str(error).split())[:120] or type(error).__name__
        raise FileError(f"{path}: damaged, or not a snapshot: {words}") from None


# ------------------------------------------------------------------------------------------------------- the machine

_PUSHED = re.compile(r"(SHORT_|BIN|LONG)*(INT|INT1|INT2|FLOAT|UNICODE8?|BYTES8?|BYTEARRAY8|STRING|LONG1|LONG4|LONG)")
_MADE: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _built(data: bytes) -> tuple[Any, int]:
    """What the pickle at the start of the bytes builds, and how long it is."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for code, given, place in pickletools.genops(io.BytesIO(data)):
        op, arg = code.name, cast(Any, given)
        if op == "STOP":
            return stack.pop(), int(place or 0) + 1
        if op in ("PROTO", "FRAME"):
            pass
        elif op in _MADE:
            stack.append(_MADE[op])
        elif _PUSHED.fullmatch(op):
            stack.append(arg)
        elif op == "MARK":
            marks.append(len(stack))
        elif op in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE"):
            stack.append({"D": {}, "L": [], "S": [], "T": ()}[op[6]])
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(op[5])
            stack[-count:] = [tuple(stack[-count:])]
        elif op == "TUPLE":
            stack.append(tuple(since_mark()))
        elif op in ("SETITEM", "SETITEMS"):
            items = since_mark() if op == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if not all(key is None or isinstance(key, str | int) for key in items[::2]):
                raise InputError("has a table by what is no text and no number")  # Python hashes deep tuples to death
            if isinstance(stack[-1], dict):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif op in ("APPEND", "APPENDS", "ADDITEMS"):
            items = since_mark() if op != "APPEND" else [stack.pop()]
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif op in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if op == "MEMOIZE" else int(arg)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(arg)])
        elif op in ("GLOBAL", "STACK_GLOBAL"):
            words = str(arg).split(" ") if op == "GLOBAL" else [stack.pop(-2), stack.pop()]
            stack.append(Thing(_allowed(".".join(words))))
        elif op in ("REDUCE", "NEWOBJ"):
            args, maker = stack.pop(), stack.pop()
            if not isinstance(maker, Thing) or maker.args is not None:
                raise InputError("asks to call what is no name; nothing was run")
            made = args[0] if maker.name.endswith(".set") and args else Thing(maker.name, args)
            stack.append({} if maker.name in DICTS else made)
        elif op == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Thing):
                stack[-1].state = state
        elif op == "BINPERSID":
            stack.append(Thing("storage", stack.pop()))
        else:
            raise InputError(f"uses {op}, which snapshots do not; nothing was run")
    raise InputError("cut off")


def _allowed(name: str) -> str:
    if name == LEGACY:
        raise InputError("a snapshot of the TensorFlow code; convert it with legacy.py of stylegan2-ada-pytorch first")
    if not NAMES.fullmatch(name):
        raise InputError(
            f"names {name[:80]!r}, which snapshots do not need; nothing was run. Where you trust the file, load it "
            "with its own code and give that as module:attribute"
        )
    return name


# ------------------------------------------------------------------------------------------------- what the things are


@dataclass
class _Reading:
    """Modules and tensors from things, within the room that the file itself takes."""

    room: int
    count: int = 0

    def module(self, thing: Any, depth: int = 0) -> Module:
        """A persistent module, or one of torch's own, with all in it."""
        self.count += 1
        if depth > MOST_DEPTH or self.count > MOST_MODULES:
            raise InputError("its modules are nested too deeply, or in a circle")
        if not isinstance(thing, Thing) or thing.name != RECORD:
            what = thing.name if isinstance(thing, Thing) else type(thing).__name__
            raise InputError(f"expected a network of stylegan2-ada-pytorch or stylegan3, got {what}")
        meta = thing.args[0]
        said = meta["state"]
        made = Module(str(meta["class_name"])[:80], said)
        temporary = said.get("_non_persistent_buffers_set") or ()
        for name, value in {**said["_parameters"], **said["_buffers"]}.items():
            if value is not None and name not in temporary:
                made.tensors[str(name)] = self.tensor(value)
        inner = {str(name): part for name, part in said["_modules"].items() if part is not None}
        made.modules = {name: self.module(part, depth + 1) for name, part in inner.items()}
        return made

    def tensor(self, thing: Any) -> Tensor:
        """The numbers of a tensor or parameter: (storage, offset, size, stride, …), no number twice."""
        if thing.name == "torch._utils._rebuild_parameter":
            thing = thing.args[0]
        if thing.name != "torch._utils._rebuild_tensor_v2":
            raise InputError(f"expected a tensor, got {thing.name}")
        storage, offset, size, stride = thing.args[:4]
        numbers = _numbers(storage)
        whole = all(type(n) is int and n >= 0 for n in (offset, *size, *stride)) and len(size) == len(stride) <= 8
        count = int(np.prod(size, dtype=object)) if whole else -1
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count > 0 else -1
        self.room -= max(count, 0) * numbers.itemsize
        if not 0 <= last < len(numbers) or count > len(numbers) or self.room < 0:
            raise InputError("a tensor is larger than its numbers")
        return torch.from_numpy(numbers.copy()).as_strided(size, stride, offset).clone()


def _numbers(thing: Any) -> np.ndarray[Any, Any]:
    """The numbers of a storage: five small pickles, of which the fourth names it, its length, and the numbers."""
    data: bytes = thing.args[0]
    if thing.name != "torch.storage._load_from_bytes" or not data.startswith(_MAGIC):
        raise InputError(f"expected the numbers of a tensor, got {thing.name}")
    held, at = [], 0
    for _ in range(5):
        value, length = _built(data[at : at + 4096])
        held.append(value)
        at += length
    _, kind, _, _, count, *_ = held[3].args
    dtype = np.dtype(_STORAGES[kind.name.removeprefix("torch.").removesuffix("Storage")])
    if held[2]["little_endian"] is not True or len(data) != at + 8 + count * dtype.itemsize:
        raise InputError("the numbers of a tensor are cut off, or in another order")
    return np.frombuffer(data, dtype, count, at + 8)


def _plain(value: Any) -> Any:
    """NumPy's numbers and small arrays as Python's; text, numbers and lists of them as they are."""
    if isinstance(value, Thing) and value.name.endswith("multiarray.scalar"):
        return _array(value.args[0], value.args[1])[0].item()
    if isinstance(value, Thing) and value.name.endswith("multiarray._reconstruct"):
        return _array(value.state[2], value.state[4]).tolist()
    if isinstance(value, Thing) and value.name.endswith("numeric._frombuffer"):  # protocol 5
        return _array(value.args[1], value.args[0]).tolist()
    if isinstance(value, Thing):
        raise InputError(f"expected a number, got {value.name}")
    return value


def _array(dtype: Thing, data: bytes) -> np.ndarray[Any, Any]:
    order = dtype.state[1] if dtype.state else "="
    if not re.fullmatch(r"[fiub][1248]", dtype.args[0]) or order not in ("<", ">", "|", "="):
        raise InputError("expected numbers in an array")
    return np.frombuffer(data, np.dtype(dtype.args[0]).newbyteorder(order))
