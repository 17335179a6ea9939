"""Banks on disk: opened whole or not at all, saved, merged, and read from the authors' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.distributions import harvesting
from likewise.distributions.bank import About, Bank
from likewise.errors import FileError, InputError
from likewise.store import job as shards
from likewise.store.checkpoint import Arrays
from likewise.store.job import ShardStore
from likewise.types import Array

if TYPE_CHECKING:
    from likewise.distributions.latents import Latent

SAVED = "bank, saved"
ROWS = 4096
"""How many latents a shard of a saved bank holds."""
_COLUMNS = {"z": 2, "log_sigma": 2, "rank": 1, "log_density": 1, "label": 1}
_SAME = ("generator", "space", "latent", "labels", "method")


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> Bank:
    """The bank in a folder; FileError names a shard that is missing or damaged, and says how to harvest it again."""
    if not (path / "manifest.json").exists():
        raise FileError(f"{path} holds no bank: it has no manifest.json")
    stores = harvesting.stores(path)
    abouts = [_about(store) for store in stores]
    columns: dict[str, list[NDArray[Any]]] = {}
    for store in stores:
        _complete(store, path)
        for i in range(len(store)):
            for name, array in _shard(store, i, path).items():
                columns.setdefault(name, []).append(array)
    about = replace(abouts[0], parts=tuple(part for a in abouts for part in a.parts))
    try:
        whole = {name: np.concatenate(parts)[: stores[-1].key["n"]] for name, parts in columns.items()}
        return _bank(whole, about, path)
    except (ValueError, KeyError) as error:
        raise FileError(f"{path} holds no bank: {error}") from error


def _bank(columns: Mapping[str, NDArray[Any]], about: About, path: Path | None) -> Bank:
    return Bank(
        columns["z"],
        columns["log_sigma"],
        rank=columns["rank"],
        labels=columns.get("label"),
        log_density=columns.get("log_density"),
        about=about,
        path=path,
    )


def _about(store: ShardStore) -> About:
    try:
        key = store.key
        if key["what"] not in (harvesting.WHAT, SAVED) or not isinstance(key["n"], int):
            raise KeyError("n")
        return About.read(key)
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{store.path / 'manifest.json'} is not the manifest of a bank") from None


def _complete(store: ShardStore, path: Path) -> None:
    missing = store.missing()
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise FileError(f"{store.file(missing[0])}{more} missing; {_again(store, path)}")


def _shard(store: ShardStore, i: int, path: Path) -> Arrays:
    try:
        arrays = store.load(i)
    except FileError as error:
        raise FileError(f"{error}; {_again(store, path)}") from error
    sizes = {len(a) if a.ndim else -1 for a in arrays.values()}
    shaped = all(name in _COLUMNS and array.ndim == _COLUMNS[name] for name, array in arrays.items())
    if len(sizes) != 1 or not shaped or not {"z", "log_sigma", "rank"} <= set(arrays):
        raise FileError(f"{store.file(i)} does not hold a shard of a bank")
    return arrays


def _again(store: ShardStore, path: Path) -> str:
    if store.key["what"] == SAVED:
        return "save the bank again"
    said = f"harvest(generator, {store.key['n']}, k={store.key['k']}, seed={store.key['seed']}, out={str(path)!r})"
    return f"{said} does it again and keeps the others"


def write(bank: Bank, path: Path) -> None:
    """A bank of any origin as a folder that `read` takes."""
    key = {"what": SAVED, **asdict(bank.about), "parts": [list(p) for p in bank.about.parts], "n": len(bank)}
    columns = {"z": bank.latents, "log_sigma": bank.log_sigma, "rank": bank.rank}
    columns |= {} if bank.labels is None else {"label": bank.labels}
    columns |= {} if bank.log_density is None else {"log_density": bank.log_density}
    key["contents"] = _sha(columns)

    def slices(i: int) -> Arrays:
        return {name: array[i * ROWS : (i + 1) * ROWS] for name, array in columns.items()}

    shards.run(slices, -(-len(bank) // ROWS), path, key=key, progress=False)


def _sha(columns: Mapping[str, NDArray[Any]]) -> str:
    import hashlib

    from likewise.store import checkpoint

    return hashlib.sha256(checkpoint.encode(columns, {})).hexdigest()


# ── many as one ───────────────────────────────────────────────────────────────────────────────────────────────────


def merged(banks: list[Bank]) -> Bank:
    """One bank of several that do not overlap, in the order of their seeds and shards."""
    if not banks:
        raise InputError("banks: expected at least one bank, got none")
    for i, bank in enumerate(banks):
        if not isinstance(bank, Bank):
            raise InputError(f"banks[{i}]: expected a Bank, got {type(bank).__name__}")
        _alike(banks[0], bank, i)
    seen: set[tuple[int, int]] = set()
    for i, bank in enumerate(banks):
        common = seen & bank.about.shards
        if common:
            seed, shard = min(common)
            raise InputError(
                f"banks[{i}] holds shard {shard} of seed {seed} that another holds, too: the same latents would count "
                "twice; harvest it with another seed"
            )
        seen |= bank.about.shards
    return _stacked(sorted(banks, key=lambda bank: bank.about.parts))


def _alike(first: Bank, bank: Bank, i: int) -> None:
    pairs = [(name, getattr(first.about, name), getattr(bank.about, name)) for name in _SAME]
    pairs += [("dim", first.dim, bank.dim), ("k", first.k, bank.k)]
    pairs += [("log_density", first.log_density is None, bank.log_density is None)]
    pairs += [("classes", first.labels is None, bank.labels is None)]
    for name, a, b in pairs:
        if a != b:
            raise InputError(
                f"banks[{i}]: {name} is {_short(b)} where the first has {_short(a)}; these cannot be merged"
            )


def _stacked(banks: list[Bank]) -> Bank:
    def column(name: str) -> Any:
        parts = [getattr(bank, name) for bank in banks]
        return None if parts[0] is None else np.concatenate(parts)

    about = replace(banks[0].about, parts=tuple(part for bank in banks for part in bank.about.parts))
    optional = {name: column(name) for name in ("rank", "labels", "log_density")}
    return Bank(column("latents"), column("log_sigma"), about=about, **optional)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:8] + "…"


# ── the authors' files ────────────────────────────────────────────────────────────────────────────────────────────


def reference(path: str | Path, latent: Latent | None, *, log: bool) -> Bank:
    """A bank from an .npz with latents, svds and (one-hot) labels; nothing in it is unpickled."""
    arrays = media.load_arrays(path)
    absent = {"latents", "svds"} - set(arrays)
    if absent:
        raise FileError(f"{path}: expected arrays 'latents' and 'svds', found {', '.join(sorted(arrays)) or 'none'}")
    latents = _vectors(arrays["latents"], path)
    log_sigma, rank = _logs(arrays["svds"], path, log=log)
    labels, classes = _classes(arrays.get("labels"), path)
    lengths = {len(latents), len(log_sigma)} | ({len(labels)} if labels is not None else set())
    if len(lengths) != 1:
        raise FileError(f"{path}: its arrays have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if latent is not None and latent.dim != latents.shape[1]:
        raise InputError(f"latent: expected one of size {latents.shape[1]}, as in {path}, got {latent.dim}")
    density = None if latent is None else latent.log_density(latents)
    described = None if latent is None else latent.to_dict()
    bounded = latent is not None and latent.support() is not None
    about = About(None, Path(path).stem, "unknown", described, bounded, classes, "reference")
    return Bank(latents, log_sigma, rank=rank, labels=labels, log_density=density, about=about)


def _vectors(latents: NDArray[Any], path: Any) -> NDArray[Any]:
    if latents.ndim == 1 or latents.dtype.kind in "iu":
        raise FileError(
            f"{path}: 'latents' are random seeds, not vectors; draw the vectors with the program that took the seeds, "
            "and save (n, dim) numbers"
        )
    if latents.ndim < 2 or latents.dtype.kind != "f" or 0 in latents.shape:
        raise FileError(f"{path}: 'latents': expected numbers (n, dim), got {latents.dtype} {latents.shape}")
    flat = latents.reshape(len(latents), -1).astype(np.float32)
    if not np.isfinite(flat).all():
        raise FileError(f"{path}: 'latents' contain NaN or infinity")
    return flat


def _logs(svds: NDArray[Any], path: Any, *, log: bool) -> tuple[Array, NDArray[np.int64]]:
    """log σ descending, and the rank: the values above σ₁ · K · ε, ε that of the numbers stored."""
    if svds.ndim != 2 or svds.dtype.kind != "f" or 0 in svds.shape:
        raise FileError(f"{path}: 'svds': expected floating numbers (n, K), got {svds.dtype} {svds.shape}")
    values = np.asarray(svds, dtype=np.float64)
    if np.isnan(values).any() or np.isposinf(values).any():
        raise FileError(f"{path}: 'svds' contain NaN or infinity")
    if not log and (values < 0).any():
        raise InputError(f"log: {path}: 'svds' are below 0 in places: if they are logarithms, pass log=True")
    with np.errstate(divide="ignore"):
        logs = -np.sort(-(values if log else np.log(values)), axis=1)
    least = logs[:, :1] + np.log(logs.shape[1] * float(np.finfo(svds.dtype).eps))
    alive = np.isfinite(logs) & (logs > least)
    return np.where(alive, logs, -np.inf), alive.sum(1)


def _classes(labels: NDArray[Any] | None, path: Any) -> tuple[NDArray[np.int64] | None, int | None]:
    """Class numbers and their count, from one-hot rows or from numbers; an empty array means that there are none."""
    if labels is None or labels.size == 0:
        return None, None
    if labels.dtype.kind not in "biuf":
        raise FileError(f"{path}: 'labels': expected numbers, got {labels.dtype} {labels.shape}")
    if labels.ndim == 2 and labels.shape[1] > 1:
        hot = labels.astype(np.float64)
        if not (((hot == 0) | (hot == 1)).all() and (hot.sum(1) == 1).all()):
            raise FileError(f"{path}: 'labels' {labels.shape} are not one-hot")
        return hot.argmax(1).astype(np.int64), int(labels.shape[1])
    flat = labels.reshape(-1)
    if flat.dtype.kind not in "iu" or (flat < 0).any():
        raise FileError(f"{path}: 'labels': expected one-hot rows or class numbers, got {labels.dtype} {labels.shape}")
    return flat.astype(np.int64), int(flat.max()) + 1
