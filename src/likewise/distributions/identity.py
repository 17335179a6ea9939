"""What tells one callable from another, so that a bank is never used with a generator that did not make it."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import numpy as np


def fingerprint(part: Any) -> bytes:
    """What tells one callable from another: a module's weights and structure, else the code and what it holds."""
    import torch

    own = getattr(part, "digest", None)
    if isinstance(own, str):
        return own.encode()
    digest = hashlib.sha256(f"{type(part).__module__}.{type(part).__qualname__}".encode())
    if isinstance(part, torch.nn.Module):
        digest.update(repr(part).encode())
        for key, value in sorted(part.state_dict().items()):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()
    digest.update(_code(part))
    for value in _held(part):
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, np.ndarray):
            digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, int | float | str | bool):
            digest.update(repr(value).encode())
        elif callable(value) and value is not part:
            digest.update(fingerprint(value))
    return digest.digest()


def _code(part: Any) -> bytes:
    """The source of a function or of a callable's class; its name where there is none."""
    try:
        return inspect.getsource(part if inspect.isroutine(part) else type(part)).encode()
    except (OSError, TypeError):
        return str(getattr(part, "__qualname__", type(part).__qualname__)).encode()


def _held(part: Any) -> list[Any]:
    """What a closure, a bound method or a callable object holds."""
    if inspect.ismethod(part):
        return [part.__self__]
    if inspect.isfunction(part):
        return [cell.cell_contents for cell in part.__closure__ or ()]
    return [value for _, value in sorted(getattr(part, "__dict__", {}).items())]
