"""State dicts of others: read without running anything in them, and taken only where every key and shape fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from likewise.errors import FileError, InputError

COUNTER = "num_batches_tracked"
"""What normalisations count in newer files only; no result depends on it."""

State = Mapping[str, Tensor]


def state_of(given: State | str | Path) -> State:
    """A state dict, or the one in a file."""
    if isinstance(given, str | Path):
        return read_state(Path(given))
    if isinstance(given, Mapping):
        return given
    raise InputError(f"state: expected a state dict or the path of one, got {type(given).__name__}")


def read_state(path: Path) -> State:
    """The state dict in a file: safetensors by its suffix, else torch's format without the right to run code."""
    try:
        loaded = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except Exception as error:  # a damaged or hostile file can raise anything; nothing of it is run
        raise FileError(f"{path}: not a state dict that is safe to read: {type(error).__name__}") from error
    if not isinstance(loaded, Mapping):
        raise FileError(f"{path}: expected a state dict, got {type(loaded).__name__}")
    return loaded


def _safetensors(path: Path) -> object:
    from safetensors.torch import load

    return load(path.read_bytes())


def _torch(path: Path) -> object:
    return torch.load(path, weights_only=True, map_location="cpu")


def check_state(state: State, model: nn.Module, name: str) -> None:
    """One for one with the model's own: no key left over, none missing, the same shapes."""
    wanted = {k: v.shape for k, v in model.state_dict().items()}
    odd = sorted(set(state) ^ set(wanted)) or sorted(k for k in wanted if _shape(state[k]) != wanted[k])
    if odd:
        raise FileError(f"weights do not fit {name}: {len(odd)} keys differ, the first is {odd[0]}")


def load_state(model: nn.Module, state: State, name: str) -> None:
    """Load a state dict strictly by key; the counters that older files do not have are left at their start."""
    own = model.state_dict()
    whole = {**{k: v for k, v in own.items() if k.endswith(COUNTER)}, **state}
    check_state(whole, model, name)
    model.load_state_dict(whole)


def classes_of(state: State, key: str, name: str) -> int:
    """How many classes the last layer has: the rows of its weight."""
    rows = _shape(state.get(key))
    if not rows:
        raise FileError(
            f"weights do not fit {name}: they have no {key}; its keys are torchvision's or pretrainedmodels'"
        )
    return rows[0]


def _shape(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()
