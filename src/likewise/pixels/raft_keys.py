"""Published state dicts of RAFT: the official layout and torchvision's, both made into the names of our modules.

Ours are the official names without the prefix `module.`. The official dicts hold the normalisation of a shortcut twice
(`norm3` or `norm4`, and `downsample.1`: one module under two names); either is enough, and two that differ are an
error. Older files lack the counters of batch normalisation, on which no result depends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from likewise.errors import FileError

State = Mapping[str, Tensor]

PREFIX = "module."
COUNTER = "num_batches_tracked"

_TORCHVISION = (
    (r"^feature_encoder\.", "fnet."),
    (r"^context_encoder\.", "cnet."),
    (r"^(.net)\.convnormrelu\.0\.", r"\1.conv1."),
    (r"^(.net)\.convnormrelu\.1\.", r"\1.norm1."),
    (r"^(.net)\.conv\.", r"\1.conv2."),
    (r"\.convnormrelu(\d)\.0\.", r".conv\1."),
    (r"\.convnormrelu(\d)\.1\.", r".norm\1."),
    (r"^update_block\.motion_encoder\.convcorr(\d)\.0\.", r"update_block.encoder.convc\1."),
    (r"^update_block\.motion_encoder\.convflow(\d)\.0\.", r"update_block.encoder.convf\1."),
    (r"^update_block\.motion_encoder\.conv\.0\.", "update_block.encoder.conv."),
    (r"^update_block\.recurrent_block\.convgru(\d)\.conv([zrq])\.", r"update_block.gru.conv\2\1."),
    (r"^mask_predictor\.convrelu\.0\.", "update_block.mask.0."),
    (r"^mask_predictor\.conv\.", "update_block.mask.2."),
)
"""torchvision's names to the official ones, one after the other."""


def translated(state: State) -> dict[str, Tensor]:
    """The weights under our names, whichever of the two layouts they come in."""
    bare = {key.removeprefix(PREFIX): value for key, value in state.items()}
    if any(key.startswith(("feature_encoder.", "context_encoder.", "mask_predictor.")) for key in bare):
        bare = _from_torchvision(bare)
    return _without_aliases(bare)


def _from_torchvision(state: State) -> dict[str, Tensor]:
    found = {}
    separable = any(".recurrent_block.convgru2." in key for key in state)
    for key, value in state.items():
        name = key
        for pattern, official in _TORCHVISION:
            name = re.sub(pattern, official, name)
        if not separable:
            name = re.sub(r"(gru\.conv[zrq])1\.", r"\1.", name)
        found[name] = value
    return found


def _without_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`norm3` (residual) and `norm4` (bottleneck) of a shortcut as its `downsample.1`."""
    found = dict(state)
    for key in state:
        twin = _twin(key, state)
        if twin is None:
            continue
        if twin in state and not _equal(state[key], state[twin]):
            raise FileError(f"weights of RAFT: {key} and {twin} are one module under two names, but they differ")
        found[twin] = found.pop(key)
    return found


def _twin(key: str, state: State) -> str | None:
    """The other name of a shortcut's normalisation: the norm after the block's last convolution's own."""
    match = re.match(r"^(.net\.layer\d\.\d)\.norm([34])\.(.+)$", key)
    if match is None:
        return None
    block, number, leaf = match.groups()
    bottleneck = f"{block}.conv3.weight" in state
    return f"{block}.downsample.1.{leaf}" if number == ("4" if bottleneck else "3") else None


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def fit(state: State, wanted: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The state, whole, where every key and shape is as wanted; else one error that names what is not."""
    whole = {**{k: v for k, v in wanted.items() if k.endswith(COUNTER)}, **state}
    missing, unknown = sorted(set(wanted) - set(whole)), sorted(set(whole) - set(wanted))
    odd = [
        _odd(k, whole[k], wanted[k]) for k in sorted(set(wanted) & set(whole)) if _shape(whole[k]) != wanted[k].shape
    ]
    faults = [f"{what} {_few(keys)}" for what, keys in (("lack", missing), ("have the unknown", unknown)) if keys]
    if odd:
        faults.append(f"have other shapes: {_few(odd)}")
    if faults:
        raise FileError(f"weights do not fit RAFT {name}: they {'; they '.join(faults)}")
    return whole


def _odd(key: str, got: object, wanted: Tensor) -> str:
    return f"{key} {_shape(got) if isinstance(got, Tensor) else type(got).__name__} instead of {tuple(wanted.shape)}"


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _few(keys: list[str], most: int = 4) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
