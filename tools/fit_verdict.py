"""The logistic models of the verdict, fitted on photos of the same and of other places, into the shipped file.

    LIKEWISE_DATA=… python tools/fit_verdict.py

True pairs of each collection of places/, and unrelated ones: its own (not kudamm's, one street whose far photos have
things in common) and with other collections. No weight may act against its sense. What it says of a collection that
it was not fitted on is written beside the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from likewise.papers import data_folder
from likewise.papers.life.places import COLLECTIONS, places
from likewise.search.verdict import DIFFERENT, SAME, WEIGHTS, measured
from likewise.search.verify import pair

PARTS = {"distance": (0,), "transport": (0, 1), "matches": (2, 3)}
PARTS |= {"distance+evidence": (0, 2, 3), "transport+evidence": (0, 1, 2, 3)}
"""Which columns of x each model has: distance, local distance, ln(max(n, 15) / 15), share of inliers."""
SENSE = (-1, -1, 1, 1)
L2 = 1e-4
"""What a squared weight costs against the mean log loss of a pair."""

Floats = NDArray[np.float64]
Data = dict[str, tuple[Floats, NDArray[np.bool_]]]


def sample(folder: Path, true: int, unrelated: int) -> dict[str, list[tuple[Path, Path, bool]]]:
    """True pairs of each collection with its own unrelated ones, and unrelated ones of each two collections."""
    chosen: dict[str, list[tuple[Path, Path, bool]]] = {}
    for name in COLLECTIONS:
        pairs, others = places(folder, name)
        order = np.random.default_rng(0).permutation(len(pairs))[:true]
        chosen[name] = [(*pairs[i], True) for i in order]
        for key, kind in others.items():
            if key != name:
                chosen[key] = [(*some, False) for some in kind[: unrelated // 2]]
            elif name != "kudamm":
                chosen[name] += [(*some, False) for some in kind[:unrelated]]
    return chosen


def look(pairs: list[tuple[Path, Path, bool]]) -> tuple[Floats, NDArray[np.bool_]]:
    """x (n, 4) and whether both are of one place."""
    rows = []
    for a, b, _ in pairs:
        hit = pair(a, b)
        rows.append(measured(hit.distance, hit.local_distance, hit.evidence)[1])
    return np.array(rows), np.array([same for *_, same in pairs])


def fit(x: Floats, y: NDArray[np.bool_], weight: Floats, columns: tuple[int, ...]) -> list[float]:
    """Intercept and weights of least log loss, each weight of its sense."""
    X, sign = np.column_stack([np.ones(len(x)), x[:, columns]]), np.where(y, 1.0, -1.0)

    def loss(w: Floats) -> tuple[float, Floats]:
        z = sign * (X @ w)
        slope = -(weight * sign / (1 + np.exp(np.clip(z, -50, 50)))) @ X
        free = np.concatenate([[0.0], w[1:]])
        return float(weight @ np.logaddexp(0, -z) + L2 * free @ free), slope + 2 * L2 * free

    bounds: Any = [(None, None)] + [(0, None) if SENSE[c] > 0 else (None, 0) for c in columns]
    return [float(v) for v in minimize(loss, np.zeros(X.shape[1]), jac=True, bounds=bounds).x]


def fit_all(data: Data) -> dict[str, list[float]]:
    """Every part of the model; true pairs weigh as much as unrelated ones."""
    x, y = join(data)
    weight = np.where(y, 0.5 / y.sum(), 0.5 / (~y).sum())
    return {name: fit(x, y, weight, columns) for name, columns in PARTS.items()}


def join(data: Data) -> tuple[Floats, NDArray[np.bool_]]:
    """All rows of some collections."""
    return np.concatenate([x for x, _ in data.values()]), np.concatenate([y for _, y in data.values()])


def report(parts: dict[str, list[float]], x: Floats, y: NDArray[np.bool_]) -> dict[str, dict[str, float]]:
    """Of each part: true pairs called different, unrelated ones called same, Brier score; and of the whole verdict."""
    sure = {
        name: x[:, columns] @ w[1:] + w[0] for (name, columns), w in zip(PARTS.items(), parts.values(), strict=True)
    }
    chances = {name: 1 / (1 + np.exp(-np.clip(z, -30, 30))) for name, z in sure.items()}
    whole, alone = chances["transport+evidence"], chances["matches"]
    chances["verdict"] = np.where(alone >= SAME, np.maximum(whole, alone), whole)
    return {
        name: {
            "true called different": float((p[y] <= DIFFERENT).mean()),
            "true called same": float((p[y] >= SAME).mean()),
            "unrelated called same": float((p[~y] >= SAME).mean()),
            "unrelated called different": float((p[~y] <= DIFFERENT).mean()),
            "brier": float((((p[y] - 1) ** 2).mean() + (p[~y] ** 2).mean()) / 2),
        }
        for name, p in chances.items()
    }


@click.command()
@click.option("--true", default=40, show_default=True, help="true pairs of a collection")
@click.option("--unrelated", default=24, show_default=True, help="unrelated ones of its own; half as many of each two")
@click.option("--keep", type=click.Path(path_type=Path), help="what was measured, as .npz: read again where it is")
def main(true: int, unrelated: int, keep: Path | None) -> None:
    """Measure, fit, hold out, and write."""
    torch.set_num_threads(1)
    kept = dict(np.load(keep)) if keep is not None and keep.exists() else {}
    for name, pairs in sample(data_folder("") / "places", true, unrelated).items():
        if f"{name} x" not in kept:
            kept[f"{name} x"], kept[f"{name} y"] = look(pairs)
            click.echo(f"{name}: {len(pairs)} pairs")
            if keep is not None:
                np.savez(keep, **kept)  # type: ignore[arg-type]
    data = {key[:-2]: (kept[key], kept[f"{key[:-1]}y"]) for key in kept if key.endswith(" x")}
    held = {}
    for name in COLLECTIONS:
        mine = {key: rows for key, rows in data.items() if name in key.split("-")}
        held[name] = report(fit_all({key: rows for key, rows in data.items() if key not in mine}), *join(mine))
    y = join(data)[1]
    record = {"parts": fit_all(data), "true": int(y.sum()), "unrelated": int((~y).sum()), "held out": held}
    WEIGHTS.write_text(json.dumps(record, indent=1) + "\n")
    for name, figures in held.items():
        click.echo(f"{name}: { ({k: round(v, 3) for k, v in figures['verdict'].items()}) }")


if __name__ == "__main__":
    main()
