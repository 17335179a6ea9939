"""Dial ρ (and truncation ψ) and see what it does: a table of measures, a frontier, a row of pictures for each ρ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.errors import InputError
from likewise.nn.features import to_uint8

if TYPE_CHECKING:
    from likewise.distributions.bank import Bank, Draw
    from likewise.distributions.model import Generator
    from likewise.nn.features import Features

MEASURES = ("frechet", "precision", "recall", "density", "coverage")
"""What is measured in each cell."""
CHUNK = 512
SHOWN = 10
"""How many pictures stand in a row of the grid."""


@dataclass(frozen=True)
class Cell:
    """One setting of the dials and what was measured there, on n samples against n_real real ones."""

    rho: float
    psi: float
    frechet: float
    precision: float
    recall: float
    density: float
    coverage: float
    ess: float
    largest: float
    n: int
    n_real: int


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A table of cells, to be gone through, drawn and written; `net` is what described the pictures."""

    cells: tuple[Cell, ...]
    net: str
    space: str
    k: int
    neighbours: int
    seed: int
    pictures: dict[tuple[float, float], Any]

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, i: int) -> Cell:
        return self.cells[i]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    def at(self, rho: float, psi: float = 1.0) -> Cell:
        """The cell of a setting."""
        for cell in self.cells:
            if cell.rho == rho and cell.psi == psi:
                return cell
        raise InputError(f"rho, psi: ({rho:g}, {psi:g}) was not swept")

    def best(self, measure: str = "frechet") -> Cell:
        """The cell that is best by a measure: the least Fréchet distance, the most of anything else."""
        if measure not in MEASURES:
            raise InputError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        pick: Callable[..., Cell] = min if measure == "frechet" else max
        return pick(self.cells, key=lambda cell: getattr(cell, measure))

    def frontier(self) -> list[Cell]:
        """The cells that no other beats in both precision and recall, from high precision to high recall."""
        return sorted((c for c in self.cells if not any(_beats(o, c) for o in self.cells)), key=lambda c: -c.precision)

    def table(self) -> str:
        """The cells as a Markdown table."""
        head = ["ρ", "ψ", "Fréchet", *MEASURES[1:], "ESS", "largest weight"]
        rows = [
            [f"{c.rho:g}", f"{c.psi:g}", f"{c.frechet:.4g}"]
            + [f"{getattr(c, name):.3f}" for name in MEASURES[1:]]
            + [f"{c.ess:.1%}", f"{c.largest:.2%}"]
            for c in self.cells
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---:"] * len(head), *rows])

    def __repr__(self) -> str:
        best = self.best()
        least = f"least Fréchet {best.frechet:.4g} at ρ = {best.rho:g}, ψ = {best.psi:g}"
        return f"Sweep({len(self)} cells, {self.net}, space {self.space}, {least})"

    def to_dict(self) -> dict[str, Any]:
        """Everything that `to_json` writes, as plain Python values."""
        about = {name: getattr(self, name) for name in ("net", "space", "k", "neighbours", "seed")}
        return {**about, "cells": [asdict(cell) for cell in self.cells]}

    def to_json(self, path: str | Path | None = None) -> str:
        """The table as JSON; with `path`, also written there, atomically."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        if path is not None:
            from likewise.media import write_text

            write_text(path, text + "\n")
        return text

    def plot(self, path: str | Path | None = None) -> Any:
        """Precision against recall along ρ, a curve a ψ, and truncation alone beside it; with `path`, also written."""
        from likewise import plot

        figure = plot.frontier([asdict(cell) for cell in self.cells], title=f"{self.net}, volumes in {self.space}")
        if path is not None:
            plot.save(figure, path)
        return figure

    def grid(self, path: str | Path | None = None, psi: float = 1.0) -> Any:
        """A row of pictures for each ρ, from modes to anti-modes (Fig. 16–18); with `path`, also written."""
        from likewise import plot

        rows = {rho: shown for (rho, at), shown in sorted(self.pictures.items()) if at == psi}
        if not rows:
            raise InputError(f"psi: there are no pictures for {psi:g}: it was not swept, or nothing to be shown")
        figure = plot.grid(list(rows.values()), [f"ρ = {rho:g}" for rho in rows])
        if path is not None:
            plot.save(figure, path)
        return figure


def sweep(
    generator: Generator,
    bank: Bank,
    rhos: Sequence[float],
    *,
    real: Any,
    features: Any = None,
    psis: Sequence[float] = (1.0,),
    k: int | None = None,
    n: int | None = None,
    neighbours: int = 3,
    seed: int = 0,
    progress: bool = False,
) -> Sweep:
    """Fréchet distance, precision, recall, density and coverage for each ρ × ψ, with the ESS [Polarity C.3].

    The bank's latents are drawn anew for each ρ (`n` of them, by default as many as there are real samples, at most
    N/2) and shown to the generator truncated to each ψ; the volumes stay those of the bank (C.3). `real` and
    `features` are those of `compare`; `k` is the number of singular values in a volume, `neighbours` that of the balls.
    """
    from likewise.distributions import metrics
    from likewise.nn.features import channels_of, extract
    from likewise.store import run as runs

    rhos, psis = _dials(rhos, "rhos"), _dials(psis, "psis")
    bank.check(generator)
    truth = extract(real, features, where="real", planes=channels_of(generator))
    count = min(len(truth), max(2, len(bank) // 2)) if n is None else n
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count <= neighbours:
        raise InputError(f"n: expected a whole number above {neighbours}, got {n!r}")
    cells, pictures = [], {}
    with runs.progress(len(rhos) * len(psis), "sweep", show=progress) as advance:
        for psi in psis:
            cut = generator.truncated(psi)
            for rho in rhos:
                drawn = bank.draw(int(count), rho, k, seed=seed)
                fake, shown = _described(cut, drawn, features)
                found = metrics.measures(truth, fake, k=neighbours)
                cells.append(_cell(drawn, psi, found, len(truth)))
                if shown is not None:
                    pictures[rho, psi] = shown
                advance()
    return Sweep(tuple(cells), truth.net, generator.space, bank.k if k is None else k, neighbours, seed, pictures)


def _cell(drawn: Draw, psi: float, found: Any, n_real: int) -> Cell:
    figures = {name: float(found[name]) for name in MEASURES}
    return Cell(drawn.rho, psi, **figures, ess=drawn.ess, largest=drawn.largest, n=len(drawn.latents), n_real=n_real)


def _described(generator: Generator, drawn: Draw, features: Any) -> tuple[Features, Any]:
    """The features of what the generator makes of a draw, and its first few pictures, if they are pictures."""
    from likewise.nn.features import Features, extract

    rows, shown = [], None
    for start in range(0, len(drawn.latents), CHUNK):
        part = slice(start, start + CHUNK)
        x = generator(drawn.latents[part], None if drawn.labels is None else drawn.labels[part])
        if start == 0 and x.ndim == 4:
            shown = to_uint8(x[:SHOWN])
        rows.append(extract(x, features, where="generator"))
    return Features(np.concatenate([r.rows for r in rows]), rows[0].net), shown


def modes(generator: Generator, bank: Bank, n: int = 64, *, k: int | None = None) -> tuple[Any, Any]:
    """The n latents of least and of greatest volume: modes and anti-modes (Fig. 10, 12, 19), as rows of the bank.

    Dead latents are in neither.
    """
    bank.check(generator)
    volume = bank.log_volume(k)
    alive = np.flatnonzero(~bank.dead(k))
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= len(alive):
        raise InputError(f"n: expected a whole number from 1 to {len(alive)}, the latents that are not dead, got {n!r}")
    order = alive[np.argsort(volume[alive], kind="stable")]
    return order[:n], order[::-1][:n]


def _dials(values: Sequence[float], name: str) -> list[float]:
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a sequence of numbers, got {values!r}") from None
    if not found or not np.isfinite(found).all():
        raise InputError(f"{name}: expected at least one finite number, got {values!r}")
    if len(set(found)) < len(found):
        raise InputError(f"{name}: expected different numbers, got {values!r}")
    return found


def _beats(a: Cell, b: Cell) -> bool:
    """Whether a is better than b in one of precision and recall and no worse in the other."""
    return a.precision >= b.precision and a.recall >= b.recall and (a.precision, a.recall) != (b.precision, b.recall)
