"""The figures of the experiments on polarity sampling, drawn from their tables into docs/_static."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from distributions_claims import LEAST, SETTINGS
from likewise import plot
from likewise.distributions import polarity, toys
from likewise.distributions.bank import harvest
from likewise.distributions.shipped import describer, shipped

STATIC = Path(__file__).parent.parent / "docs" / "_static"
Row = dict[str, Any]
Rows = list[Row]


def draw(found: dict[str, Rows], folder: Path = STATIC) -> None:
    """Every figure whose tables are there."""
    if "sweep" in found and "truncation" in found:
        _save(dial(found["sweep"], found["truncation"]), folder / "distributions-dial.png")
    if "sweep" in found:
        _save(grid_of_settings(found["sweep"]), folder / "distributions-settings.png")
    if {"likelihood", "path-lengths", "spectra", "colours"} <= set(found):
        _save(appendix(found), folder / "distributions-appendix.png")
    _save(toy_figure(), folder / "distributions-toys.png")
    _save(clothes(), folder / "distributions-clothes.png")


def _save(fig: Figure, path: Path) -> None:
    plot.save(fig, path, dpi=90)


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Figure, Any]:
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax in axes.ravel():
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=7, color=plot.QUIET)
    return fig, axes


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["generator"] for row in rows))


def dial(sweep: Rows, truncation: Rows) -> Figure:
    """Above: precision against recall, by ρ and by ψ. Below: the Fréchet distance against ρ."""
    names = _names(sweep)
    fig, axes = _figure(2.6 * len(names), 5.0, 2, len(names))
    for name, above, below in zip(names, axes[0], axes[1], strict=True):
        for colour, (space, k) in zip((0, 2), SETTINGS, strict=True):
            line = _line(sweep, name, space, k)
            _frontier(above, line, plot.PALETTE[colour], [f"{r['rho']:g}" for r in line], f"ρ, {space}, k = {k}")
        cut = sorted((r for r in truncation if r["generator"] == name), key=lambda r: r["recall"])
        _frontier(above, cut, plot.PALETTE[1], [str(r["psi"]) for r in cut], "truncation ψ")
        above.set_title(name, fontsize=9)
        above.set_xlabel("recall", fontsize=8)
        for i, space in enumerate(("pixel", "preactivation", "feature")):
            x, y, e = ([r[key] for r in _line(sweep, name, space, 3)] for key in ("rho", "frechet", "frechet ±"))
            below.errorbar(x, y, e, color=plot.PALETTE[i], lw=1, marker="o", ms=2.5, label=space)
        below.set_xlabel("ρ (k = 3)", fontsize=8)
    axes[0, 0].set_ylabel("precision", fontsize=8)
    axes[1, 0].set_ylabel("Fréchet distance", fontsize=8)
    axes[0, 0].legend(fontsize=6, frameon=False)
    axes[1, 0].legend(fontsize=6, frameon=False)
    return fig


def _line(sweep: Rows, name: str, space: str, k: int) -> Rows:
    """The cells along the grid of ρ that keep their effective size."""
    rows = [r for r in sweep if (r["generator"], r["space"], r["k"], r["by"]) == (name, space, k, "rho")]
    return sorted((r for r in rows if r["ess"] >= LEAST), key=lambda r: r["rho"])


def _frontier(ax: Any, rows: Rows, colour: str, words: list[str], label: str) -> None:
    x, y, ex, ey = ([r[key] for r in rows] for key in ("recall", "precision", "recall ±", "precision ±"))
    ax.errorbar(x, y, ey, ex, color=colour, lw=1, marker="o", ms=3, elinewidth=0.6, label=label)
    for a, b, word in zip(x, y, words, strict=True):
        ax.annotate(word, (a, b), textcoords="offset points", xytext=(3, 3), fontsize=6, color=colour)


def grid_of_settings(sweep: Rows) -> Figure:
    """How far precision and recall move between effective sizes of 25 % on both sides, by space and k."""
    names = _names(sweep)
    fig, axes = _figure(2.6 * len(names), 2.6, 1, len(names))
    for name, ax in zip(names, axes[0], strict=True):
        for i, space in enumerate(("pixel", "preactivation", "feature")):
            few = [r for r in sweep if r["generator"] == name and r["space"] == space]
            ks = sorted({r["k"] for r in few})
            for key, style, sense in (("precision", "-", 1), ("recall", "--", -1)):
                ends = [_mean(few, k, "-0.25", key) - _mean(few, k, "0.25", key) for k in ks]
                label = f"{space}, {'precision gained' if sense > 0 else 'recall given'}"
                ax.plot(
                    ks, np.multiply(sense, ends), style, color=plot.PALETTE[i], marker="o", ms=2.5, lw=1, label=label
                )
        ax.axhline(0, color=plot.FAINT, lw=0.8)
        ax.set_xscale("log")
        ax.set_xticks(ks, [str(k) for k in ks])
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("k", fontsize=8)
    axes[0, 0].set_ylabel("swing at ESS 25 %", fontsize=8)
    axes[0, 0].legend(fontsize=5, frameon=False)
    return fig


def _mean(rows: Rows, k: int, by: str, key: str) -> float:
    return float(next(r[key] for r in rows if r["k"] == k and r["by"] == by))


def appendix(found: dict[str, Rows]) -> Figure:
    """Against ρ: likelihood (C.4), path length (C.5), the share of the rare colour (C.1), singular values (Fig. 13)."""
    fig, axes = _figure(10.4, 2.6, 1, 4)
    panels = (("likelihood", "bits a pixel", "generator"), ("path-lengths", "step 1e-4", "generator"))
    panels += (("colours", "cyan", "space"), ("spectra", "mean log σ", "generator"))
    for ax, (experiment, column, by) in zip(axes[0], panels, strict=True):
        for i, name in enumerate(dict.fromkeys(r[by] for r in found[experiment])):
            rows = [r for r in found[experiment] if r[by] == name and r["ess"] >= LEAST]
            x, y = ([r[key] for r in rows] for key in ("rho", column))
            e = [r.get(f"{column} ±", 0.0) for r in rows]
            if experiment == "path-lengths":
                zero = next(r[column] for r in rows if r["rho"] == 0)
                y, e = np.divide(y, zero), np.divide(e, zero)
            ax.errorbar(x, y, e, color=plot.PALETTE[i], lw=1, marker="o", ms=2.5, label=name)
        ax.set_title(
            {"path-lengths": "path length / that at ρ = 0", "colours": "share of the rare colour"}.get(
                experiment, column
            ),
            fontsize=8,
        )
        ax.set_xlabel("ρ", fontsize=8)
        ax.legend(fontsize=6, frameon=False)
    return fig


def toy_figure() -> Figure:
    """The mosaic of moons and the bump, drawn at ρ = −1, 0, 1/2, 1 from banks of the library [Fig. 11]."""
    rhos = (-1.0, 0.0, 0.5, 1.0)
    fig, axes = _figure(8.4, 4.2, 2, 4)
    for toy, line in zip((toys.mosaic("moons"), toys.bump()), axes, strict=True):
        z = toy.latent.sample(20000, np.random.default_rng(0))
        for rho, ax in zip(rhos, line, strict=True):
            log_w = polarity.log_weights(toy.log_volume(z)[:, None], rho)
            rows = polarity.resample(log_w, 2500, "systematic", np.random.default_rng(1))
            x = toy(torch.from_numpy(z[rows])).numpy()
            flat = x if x.shape[1] == 2 else np.stack([x[:, 0], 0.35 * x[:, 1] + 0.9 * x[:, 2]], 1)
            ax.scatter(*flat.T, s=0.6, color=plot.PALETTE[0], linewidths=0)
            ax.set_axis_off()
            ax.set_title(f"{toy.name}, ρ = {rho:g}", fontsize=8)
    return fig


def clothes() -> Figure:
    """Pictures of the shipped GAN drawn at ρ, feature space, k = 3 (Fig. 16–18), and the ends of its volumes."""
    generator = shipped("fashion").in_space(describer())
    bank = harvest(generator, 1000, k=3, seed=0)
    rhos = (-1.0, -0.5, 0.0, 0.5, 1.0)
    fig, axes = _figure(10.4, 2.4, 1, len(rhos))
    for rho, ax in zip(rhos, axes[0], strict=True):
        log_w = bank.log_weights(rho, 3)
        rows = np.random.default_rng(2).permutation(
            polarity.resample(log_w, 30, "systematic", np.random.default_rng(3))
        )
        x = generator(bank.latents[rows])[:, 0].numpy()
        sheet = x.reshape(5, 6, 28, 28).transpose(0, 2, 1, 3).reshape(140, 168)
        ax.imshow(1 - sheet, cmap="gray", vmin=0, vmax=1)
        ax.set_axis_off()
        ax.set_title(f"ρ = {rho:g}, ESS {polarity.ess(log_w):.0%}", fontsize=8)
    return fig
