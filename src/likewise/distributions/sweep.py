"""Set ρ (and truncation ψ) and see quality and diversity: a table of measures, a frontier, a row of images each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from likewise import plot
from likewise.distributions import metrics
from likewise.distributions.bank import Bank, Draw
from likewise.distributions.generator import Generator
from likewise.distributions.latents import check_whole
from likewise.errors import InputError
from likewise.nn.features import Features, channels_of, extract, to_uint8
from likewise.store import run as runs
from likewise.types import Comparison

MEASURES = ("frechet", "precision", "recall", "density", "coverage")
"""What is measured in each cell."""
CHUNK = 512
SHOWN = 10
"""How many images stand in a row of the grid."""


@dataclass(frozen=True)
class Cell:
    """One setting of ρ and ψ and what was measured there, on n samples against n_real real ones.

    Measures are means over draws from the bank, `errors` their standard errors. `volumes` is the ψ at which the volumes
    that the latents were drawn by had been measured.
    """

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
    volumes: float
    errors: Mapping[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Comparison):
    """A table of cells, one a setting of ρ and ψ: what `sweep` gives.

    Attributes
    ----------
    cells : tuple of Cell
        ρ, ψ, the five measures with their errors, effective share and largest weight of each setting, and the ψ of the
        volumes.
    net : str
        The net whose features were compared.
    space : str
        Where volumes were measured.
    k, neighbours, draws, seed : int
        Singular values in a volume, the neighbour that sets the radius of a ball, draws of each setting and the seed of
        the first.
    images : dict
        (ρ, ψ) → the first few images of each setting.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> generator = lw.distributions.Generator(lambda z: z + 0.3 * z**3, lw.distributions.Normal(2))
    >>> bank = lw.distributions.harvest(generator, 200, progress=False)
    >>> table = lw.distributions.sweep(generator, bank, (-0.5, 0.0, 0.5), real=generator.draw(100, seed=9).numpy())
    >>> [cell.rho for cell in table]
    [-0.5, 0.0, 0.5]
    >>> 0 <= table.at(0.0).precision <= 1
    True
    """

    cells: tuple[Cell, ...]
    net: str
    space: str
    k: int
    neighbours: int
    draws: int
    seed: int
    images: dict[tuple[float, float], Any]

    distance: float = field(init=False)
    """The least Fréchet distance of the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", self.best().frechet)

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
        head = ["ρ", "ψ", "volumes at ψ", "Fréchet", *MEASURES[1:], "ESS", "largest weight"]
        rows = [
            [f"{c.rho:g}", f"{c.psi:g}", f"{c.volumes:g}", f"{c.frechet:.4g} ± {c.errors['frechet']:.2g}"]
            + [f"{getattr(c, name):.3f} ± {c.errors[name]:.3f}" for name in MEASURES[1:]]
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
        about = {name: getattr(self, name) for name in ("net", "space", "k", "neighbours", "draws", "seed")}
        return {**about, "cells": [asdict(cell) for cell in self.cells]}

    def plot(self, path: str | Path | None = None) -> Any:
        """Precision against recall along ρ, a curve a ψ, and truncation alone beside it; with `path`, also written."""
        figure = plot.frontier([asdict(cell) for cell in self.cells], title=f"{self.net}, volumes in {self.space}")
        if path is not None:
            plot.save(figure, path)
        return figure

    def grid(self, path: str | Path | None = None, psi: float = 1.0) -> Any:
        """A row of images for each ρ, from modes to anti-modes (Fig. 16–18); with `path`, also written."""
        rows = {rho: shown for (rho, at), shown in sorted(self.images.items()) if at == psi}
        if not rows:
            raise InputError(
                f"psi: there are no images for {psi:g}: it was not swept, or what it makes cannot be shown"
            )
        figure = plot.grid(list(rows.values()), [f"ρ = {rho:g}" for rho in rows])
        if path is not None:
            plot.save(figure, path)
        return figure


def sweep(
    generator: Generator,
    bank: Bank | Sequence[Bank],
    rhos: Sequence[float],
    *,
    real: Any,
    features: Any = None,
    psis: Sequence[float] = (1.0,),
    k: int | None = None,
    n: int | None = None,
    draws: int = 3,
    neighbours: int = 3,
    seed: int = 0,
    progress: bool = False,
) -> Sweep:
    """Measure quality and diversity for each ρ × ψ: Fréchet distance, precision, recall, density, coverage.

    The bank's latents are resampled for each ρ, all by one scheme, and given to the generator truncated to each ψ. Of
    several banks, each ψ takes the one that was harvested at it; without one, volumes are those of the first bank, and
    the table says so [Polarity C.3].

    Parameters
    ----------
    generator : Generator
        The one that the bank was harvested from.
    bank : Bank or sequence of Bank
        Its latents and singular values; further banks at their own ψ, harvested from `generator.truncated(psi)`.
    rhos, psis : sequence of float
        The settings; ρ < 0 goes towards modes, ψ = 1 is no truncation.
    real : any
        What is measured against: a folder, images or features, as for `compare`.
    features : callable or embedder, optional
        As for `compare`.
    k : int, optional
        Singular values in a volume; by default all that the bank holds.
    n : int, optional
        Samples a setting; by default as many as there are real ones, at most half of the bank.
    draws : int, default 3
        Draws of each setting, at least two: the measures are their means, and their standard errors say how far draws
        from this bank scatter (those from another scatter more).
    neighbours : int, default 3
        The neighbour that sets the radius of a ball.
    seed : int, default 0
        Of the first draw.
    progress : bool, default False
        Show a bar.

    Returns
    -------
    Sweep
        A table with `.at(rho, psi)`, `.best(measure)`, `.frontier()`, `.table()`, `.plot()`, `.grid()`, `.to_json()`.

    Raises
    ------
    InputError
        Where the bank is another generator's, or settings are not finite and distinct.

    Examples
    --------
    >>> import likewise as lw
    >>> generator = lw.distributions.Generator(lambda z: z + 0.3 * z**3, lw.distributions.Normal(2))
    >>> bank = lw.distributions.harvest(generator, 200, progress=False)
    >>> table = lw.distributions.sweep(generator, bank, (-0.5, 0.0), real=generator.draw(100, seed=9).numpy())
    >>> table.at(-0.5).ess < table.at(0.0).ess == 1
    True
    """
    rhos, psis = _settings(rhos, "rhos"), _settings(psis, "psis")
    banks = [bank] if isinstance(bank, Bank) else list(bank)
    for one in banks:
        one.check(generator)
    at = {one.about.psi: one for one in reversed(banks)}
    if not banks or len(at) < len(banks):
        raise InputError(f"bank: expected banks, each at another ψ, got {len(banks)} at {len(at)}")
    check_whole("draws", draws, 2)
    truth = extract(real, features, where="real", planes=channels_of(generator))
    most = min(len(one) for one in banks) // 2
    n = check_whole("n", min(len(truth), max(2, most)) if n is None else n, neighbours + 1)
    cells, images = [], {}
    with runs.progress(len(rhos) * len(psis), "sweep", show=progress) as advance:
        for psi in psis:
            cut, source = generator.truncated(psi), at.get(psi, banks[0])
            for rho in rhos:
                drawn = [source.draw(n, rho, k, seed=seed + i) for i in range(draws)]
                made = [_extract(cut, one, features) for one in drawn]
                runs_of = [metrics.measures(truth, fake, k=neighbours) for fake, _ in made]
                table = np.array([[float(run[name]) for name in MEASURES] for run in runs_of])
                figures = dict(zip(MEASURES, table.mean(0).tolist(), strict=True))
                errors = dict(zip(MEASURES, (table.std(0, ddof=1) / np.sqrt(draws)).tolist(), strict=True))
                weights = {"ess": drawn[0].ess, "largest": drawn[0].largest, "volumes": source.about.psi}
                cells.append(Cell(rho, psi, **figures, **weights, n=n, n_real=len(truth), errors=errors))
                if made[0][1] is not None:
                    images[rho, psi] = made[0][1]
                advance()
    top = banks[0].k if k is None else k
    return Sweep(tuple(cells), truth.net, generator.space, top, neighbours, draws, seed, images)


def _extract(generator: Generator, drawn: Draw, features: Any) -> tuple[Features, Any]:
    """The features of what the generator makes of a draw, and its first few images, if they are images."""
    rows, shown = [], None
    for start in range(0, len(drawn.latents), CHUNK):
        part = slice(start, start + CHUNK)
        x = generator(drawn.latents[part], None if drawn.labels is None else drawn.labels[part])
        if start == 0 and x.ndim == 4:
            shown = to_uint8(x[:SHOWN])
        rows.append(extract(x, features, where="generator"))
    return Features(np.concatenate([r.rows for r in rows]), rows[0].net), shown


def modes(generator: Generator, bank: Bank, n: int = 64, *, k: int | None = None) -> tuple[Any, Any]:
    """Find the modes and anti-modes of a bank: its latents of least and of greatest volume [Polarity Fig. 10, 12, 19].

    Parameters
    ----------
    generator : Generator
        The one that the bank was harvested from.
    bank : Bank
        Its latents; dead ones are in neither.
    n : int, default 64
        How many of each.
    k : int, optional
        Singular values in a volume; by default all that the bank holds.

    Returns
    -------
    modes, antimodes : ndarray (n,)
        Rows of the bank, the most extreme first.

    Raises
    ------
    InputError
        Where the bank is another generator's or has fewer latents.

    Examples
    --------
    >>> import likewise as lw
    >>> generator = lw.distributions.Generator(lambda z: z + z**3, lw.distributions.Normal(1))
    >>> bank = lw.distributions.harvest(generator, 100, progress=False)
    >>> modes, antimodes = lw.distributions.modes(generator, bank, 3)
    >>> abs(bank.latents[modes]).max() < abs(bank.latents[antimodes]).min()
    np.True_
    """
    bank.check(generator)
    volume = bank.log_volume(k)
    alive = np.flatnonzero(~bank.dead(k))
    n = check_whole("n", n, 1, len(alive), ", the latents that are not dead")
    order = alive[np.argsort(volume[alive], kind="stable")]
    return order[:n], order[::-1][:n]


def _settings(values: Sequence[float], name: str) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not np.isfinite(numbers).all() or len(set(numbers)) < len(numbers):
        raise InputError(f"{name}: expected finite numbers, at least one and each once, got {values!r}")
    return numbers


def _beats(a: Cell, b: Cell) -> bool:
    """Whether a is better than b in one of precision and recall and no worse in the other."""
    return a.precision >= b.precision and a.recall >= b.recall and (a.precision, a.recall) != (b.precision, b.recall)
