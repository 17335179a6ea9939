"""State dicts from files: tensors only. Nothing of a file is ever run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from likewise.errors import FileError, InputError

MOST_BYTES = 8 << 30
"""A file longer than this is refused before it is read."""

_HOLDERS = (
    "g_ema",
    "G_ema",
    "avgG",
    "ema",
    "netG",
    "generator",
    "G",
    "g",
    "gen",
    "state_dict",
    "model_state_dict",
    "model",
)
"""Under which keys a checkpoint keeps its generator, averaged weights first."""


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .pth, .pt, .bin or .safetensors file by key; a file that would run code is a FileError."""
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file}: is a folder; give a file of weights" if file.is_dir() else f"{file}: no such file")
    if file.stat().st_size > MOST_BYTES:
        raise FileError(f"{file}: longer than {MOST_BYTES:,} bytes")
    try:
        with file.open("rb") as stream:
            head = stream.read(9)
        loaded = _safetensors(file) if head[8:] == b"{" else _torch(file, head)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{file}: cannot be read: {error.strerror or error}") from None
    try:
        return as_state(loaded)
    except InputError as error:
        raise FileError(f"{file}: {str(error).removeprefix('state: ')}") from None


def as_state(value: Any) -> dict[str, Tensor]:
    """The generator's tensors in what a checkpoint holds, without the prefix of DataParallel."""
    found = _held(value)
    if found is None:
        raise InputError(f"state: expected tensors by name, or a checkpoint that holds them; got {_shape(value)}")
    while found and all(key.startswith("module.") for key in found):
        found = {key.removeprefix("module."): tensor for key, tensor in found.items()}
    bad = next((key for key, t in found.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())), None)
    if bad is not None:
        raise InputError(f"state: {bad} contains NaN or infinity")
    return found


def _held(value: Any, depth: int = 0) -> dict[str, Tensor] | None:
    if not isinstance(value, Mapping) or not value or depth > 3:
        return None
    if all(isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in value.items()):
        return {key: _numbers(key, tensor) for key, tensor in value.items()}
    for name in _HOLDERS:
        found = _held(value.get(name), depth + 1)
        if found is not None:
            return found
    return None


def _numbers(key: str, tensor: Tensor) -> Tensor:
    """A plain dense tensor; half precision becomes single, which a processor can work in."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise InputError(f"state: {key} is not a dense tensor of real numbers")
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"the keys {', '.join(map(str, list(value)[:4]))}" if value else "nothing"
    return type(value).__name__


def _torch(file: Path, head: bytes) -> Any:
    """What torch.load gives, allowed tensors and plain containers only."""
    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged or hostile file can raise anything; nothing of it is run
        raise FileError(f"{file}: {_reason(file, head, error)}") from None


def _reason(file: Path, head: bytes, error: Exception) -> str:
    words = " ".join(str(error).split())
    runs_code = "Unsupported global" in words or "Unsupported operand" in words or "weights_only" in words.lower()
    if head[:2] == b"PK" and not zipfile.is_zipfile(file):
        return "damaged: the archive is cut off"
    if runs_code or head[:1] == b"\x80":
        named = words.split("GLOBAL ")[1].split(" was not")[0] if "GLOBAL " in words and " was not" in words else ""
        what = f" ({named})" if named else ""
        return (
            f"holds Python objects{what}, not only tensors; unpickling would run its code. Where you trust it, "
            "load it there and save the generator's own: torch.save(G.state_dict(), 'generator.pt')"
        )
    return f"not a file of weights, or damaged: {type(error).__name__}"


def _safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: dict[str, Tensor] = load_file(file)
    except (SafetensorError, ValueError, RuntimeError, MemoryError, json.JSONDecodeError) as error:
        raise FileError(f"{file}: damaged: {' '.join(str(error).split())[:200]}") from None
    return state
