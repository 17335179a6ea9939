"""The paper's experiments on polarity sampling at our scale: tables, figures and a verdict on each claim.

    python benchmarks/quality.py distributions                 everything; banks and cells of an earlier run are kept
    python benchmarks/quality.py distributions --only sweep    one experiment
    python benchmarks/quality.py distributions --quick         two seeds, small banks, nothing written to results/

Each (experiment, generator, seed) is a file in the folder of cells, named by a digest of the sources and settings that
it depends on: a killed run goes on where it was.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from scipy import stats

import distributions_cards as cards
import distributions_cells as cells
import distributions_claims as claims
import distributions_figures as figures
import distributions_world as world
import likewise
import train_generators as training
from distributions_cells import summary
from likewise.distributions import marchenko, metrics, paths, polarity
from likewise.distributions.shipped import Likelihood
from likewise.media import cache_folder, write_text
from record import record

SIZE = 2000
"""Latents a bank: what the Jacobians of the two larger networks allow in minutes on one core. Half are drawn."""
PSIS = (0.5, 0.75, 1.0, 1.5, 2.0)
REAL = 3000
"""Real pictures that are measured against."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """What a run is made with."""

    stores: world.Stores
    seeds: int = 5
    quick: bool = False

    def size(self) -> int:
        """Latents a bank."""
        return 400 if self.quick else SIZE

    @functools.cache  # noqa: B019 (one object a run)
    def subject(self, name: str) -> world.Subject:
        """A generator under test."""
        return world.SUBJECTS[name](self.stores)

    def real(self, subject: world.Subject) -> cells.Real:
        """Its real side."""
        return cells.Real(world.describe(subject.describe, subject.real[: 500 if self.quick else REAL]))

    def bank(self, subject: world.Subject, seed: int, psi: float | None = None, n: int | None = None) -> world.Harvest:
        """The bank of a seed."""
        return world.harvest(subject, n or self.size(), seed, self.stores.cells, psi=psi)


def kept(setting: Setting, experiment: str, name: str, seed: int, make: Callable[[], Rows], of: Any = None) -> Rows:
    """The rows of one (experiment, generator, seed), from the folder of cells if they are there.

    `of` is the function that does the work, where that is not `make` itself: its source is part of the file's name.
    """
    file = setting.stores.cells / f"{experiment}-{name}-{seed}-{_digest(setting, experiment, name, of or make)}.json"
    if file.is_file():
        return list(json.loads(file.read_text(encoding="utf-8")))
    began = time.perf_counter()
    rows = make()
    write_text(file, json.dumps(rows))
    click.echo(f"{experiment} {name} seed {seed}: {len(rows)} rows, {time.perf_counter() - began:.0f} s")
    return rows


USED = {"likelihood": ["metrics", "shipped"], "ppl": ["paths", "describers"], "spectra": ["marchenko"]}
"""What an experiment uses of the level, besides weights and draws."""


def _digest(setting: Setting, experiment: str, name: str, made: Callable[..., Rows]) -> str:
    """The sources that a figure depends on, and the sizes."""
    home, here = Path(likewise.__file__).parent, Path(__file__).parent
    own = [here / "distributions_cells.py"] + ([here / "train_generators.py"] if name == "colours-vae" else [])
    level = [home / "distributions" / f"{file}.py" for file in ("polarity", "resampling", *USED.get(experiment, []))]
    math = [home / "core" / f"{file}.py" for file in ("gaussians", "neighbors")]
    text = b"".join(file.read_bytes() for file in [*own, *level, *math])
    settings = f"{inspect.getsource(made)} {setting.size()} {setting.quick} {REAL} {world.code()}"
    settings += world.identity(setting.subject(name)) if name in world.SUBJECTS else ""
    return hashlib.sha256(text + settings.encode()).hexdigest()[:12]


# --------------------------------------------------------------------------------------- ρ × k × space, 5 seeds


def sweep(setting: Setting) -> dict[str, list[Rows]]:
    """The cells of every generator, a list a seed."""
    return {name: [_swept(setting, name, seed) for seed in range(setting.seeds)] for name in world.SUBJECTS}


def _swept(setting: Setting, name: str, seed: int) -> Rows:
    def make() -> Rows:
        subject = setting.subject(name)
        bank = setting.bank(subject, seed)
        measured = cells.Measured(bank.features, setting.real(subject))
        n = len(bank.z) // 2
        if seed == 0:
            click.echo(f"{name}: log σ within {world.check(subject, bank):.1e} nats of the library's")
            cells.agree(measured, np.arange(n))
        return cells.sweep(bank, measured, n, seed)

    return kept(setting, "sweep", name, seed, make)


def table(seeds: list[Rows], name: str) -> Rows:
    """Mean ± s.e. over seeds of every cell, and of its difference from ρ = 0 in the same bank."""
    rows = []
    for i, first in enumerate(seeds[0]):
        same = [seed[i] for seed in seeds]
        row: dict[str, Any] = {"generator": name, **{key: first[key] for key in ("space", "k", "by")}}
        for key in ("rho", "ess", "largest", "distinct"):
            row[key] = float(np.mean([one[key] for one in same]))
        plain = [_plain(seed, first) for seed in seeds]
        for key in ("frechet", "precision", "recall"):
            row[key], row[f"{key} ±"] = summary([one[key] for one in same])
            paired = [one[key] - zero[key] for one, zero in zip(same, plain, strict=True)]
            row[f"Δ {key}"], row[f"Δ {key} ±"] = summary(paired)
            row[f"{key} by bank"] = [round(one[key], 5) for one in same]
            row[f"Δ {key} by bank"] = [round(value, 5) for value in paired]
            if f"control {key}" in first:
                against = [one[key] - one[f"control {key}"] for one in same]
                row[f"beyond control {key}"], row[f"beyond control {key} ±"] = summary(against)
        rows.append(row)
    return rows


def _plain(seed: Rows, like: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in seed if c["rho"] == 0 and all(c[key] == like[key] for key in ("space", "k")))


# ---------------------------------------------------------------------------------------- truncation [C.2, Tab. 5]


def truncation(setting: Setting) -> Rows:
    """Latents cut to ±ψ instead of weighed: Fréchet, precision and recall, as many samples as a draw has."""
    rows = []
    for name in world.SUBJECTS:
        seeds = [_truncated(setting, name, seed) for seed in range(setting.seeds)]
        for i, first in enumerate(seeds[0]):
            row = {"generator": name, "psi": first["psi"], "latent norm": float(np.mean([s[i]["norm"] for s in seeds]))}
            for key in ("frechet", "precision", "recall"):
                row[key], row[f"{key} ±"] = summary([s[i][key] for s in seeds])
            rows.append(row)
    return rows


def _truncated(setting: Setting, name: str, seed: int) -> Rows:
    def make() -> Rows:
        subject, rows = setting.subject(name), []
        real, n = setting.real(subject), setting.size() // 2
        for psi in (*PSIS, None):
            z, y = subject.draw(n, (100, seed), psi)
            measured = cells.Measured(_features(subject, z, y), real)
            norm = float(z.square().sum(1).mean().sqrt())
            rows.append({"psi": psi or "none", "norm": norm, **measured(np.arange(n))})
        return rows

    return kept(setting, "truncation", name, seed, make)


def _features(subject: world.Subject, z: torch.Tensor, y: tuple[torch.Tensor, ...]) -> Any:
    parts = []
    with torch.no_grad():
        for i in range(0, len(z), 100):
            x = subject.pixels(z[i : i + 100], *(one[i : i + 100] for one in y))
            parts.append(subject.describe(x).numpy())
    return np.concatenate(parts)


def norms(setting: Setting) -> Rows:
    """Whether volumes are the latents' lengths under another name: rank correlation of v_k and ‖z‖ [C.2]."""
    rows = []
    for name in world.SUBJECTS:
        subject = setting.subject(name)
        for space in world.SPACES:
            k = min(5, subject.dim)
            found = []
            for seed in range(setting.seeds):
                bank = setting.bank(subject, seed)
                length = np.linalg.norm(bank.z, axis=1)
                found.append(float(stats.spearmanr(bank.log_sigma[space][:, :k].sum(1), length)[0]))
            mean, error = summary(found)
            rows.append({"generator": name, "space": space, "k": k, "rank correlation": mean, "±": error})
    return rows


# ----------------------------------------------------------------------------------- ρ > 0 under truncation [C.3]


def truncated_polarity(setting: Setting) -> Rows:
    """Banks of truncated latents, resampled at ρ ≥ 0: does recall come back, and at which price?"""
    rows = []
    for name in ("fashion", "fashion-vae"):
        for psi in (0.75, 1.5):
            seeds = [_under(setting, name, psi, seed) for seed in range(setting.seeds)]
            for i, first in enumerate(seeds[0]):
                row = {"generator": name, "psi": psi, "rho": first["rho"]}
                row |= {key: float(np.mean([s[i][key] for s in seeds])) for key in ("ess", "largest")}
                for key in ("frechet", "precision", "recall"):
                    row[key], row[f"{key} ±"] = summary([s[i][key] for s in seeds])
                    row[f"Δ {key}"], row[f"Δ {key} ±"] = summary([s[i][key] - s[0][key] for s in seeds])
                rows.append(row)
    return rows


def _under(setting: Setting, name: str, psi: float, seed: int) -> Rows:
    def make() -> Rows:
        subject = setting.subject(name)
        bank = setting.bank(subject, seed, psi, setting.size() // 2)
        measured = cells.Measured(bank.features, setting.real(subject))
        return [cells.cell(bank, measured, "feature", 3, rho, len(bank.z) // 2, seed) for rho in (0.0, 0.2, 0.5, 1.0)]

    return kept(setting, f"under-{psi:g}", name, seed, make)


# ---------------------------------------------------------------------------------------- ablation of N [Tab. 3]


def sizes(setting: Setting) -> Rows:
    """One draw of 250 from banks of growing N, in feature space at k = 3."""
    rows = []
    for name in ("dcgan", "fashion"):
        for rho in (-0.5, 0.5):
            for N in sorted({min(N, setting.size()) for N in (250, 500, 1000, 2000)}):
                seeds = [_sized(setting, name, rho, N, seed) for seed in range(setting.seeds)]
                row: dict[str, Any] = {"generator": name, "rho": rho, "N": N}
                row["effective latents"] = float(np.mean([s["ess"] for s in seeds])) * N
                row["distinct"] = float(np.mean([s["distinct"] for s in seeds]))
                for key in ("frechet", "precision", "recall"):
                    row[key], row[f"{key} ±"] = summary([s[key] for s in seeds])
                    row[f"{key} by bank"] = [round(s[key], 5) for s in seeds]
                rows.append(row)
    return rows


def _sized(setting: Setting, name: str, rho: float, N: int, seed: int) -> dict[str, Any]:
    def make() -> Rows:
        subject = setting.subject(name)
        whole = setting.bank(subject, seed)
        logs = {space: values[:N] for space, values in whole.log_sigma.items()}
        bank = world.Harvest(whole.z[:N], None if whole.y is None else whole.y[:N], logs, whole.features[:N])
        measured = cells.Measured(bank.features, setting.real(subject))
        return [cells.cell(bank, measured, "feature", 3, rho, 250, seed)]

    return kept(setting, f"sizes-{rho:g}-{N}", name, seed, make)[0]


# ------------------------------------------------------------------- likelihood [C.4], path length [C.5], Fig. 13


def likelihood(setting: Setting) -> Rows:
    """−log p of pictures drawn at ρ, under the VAE that drew them, in bits a pixel (importance-weighted bound)."""
    return _by_rho(setting, "likelihood", ("fashion-vae",), _likely, ("bits a pixel",))


def _likely(setting: Setting, name: str, seed: int) -> Rows:
    subject, density = setting.subject(name), Likelihood(samples=16)
    bank = setting.bank(subject, seed)
    rows = []
    for rho in cells.RHOS:
        log_w = cells.weights(bank, "feature", rho, 3)
        rng = np.random.default_rng((29, seed))
        z = torch.from_numpy(bank.z[cells.draw(log_w, 300, rng)])
        with torch.no_grad():
            x = subject.pixels(z)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) * np.exp(density.log_spread)
        value = float(metrics.nll(density, x + noise)) / (x[0].numel() * np.log(2))
        rows.append({"rho": rho, "ess": polarity.ess(log_w), "bits a pixel": value})
    return rows


def path_lengths(setting: Setting) -> Rows:
    """Perceptual path length between latents drawn at ρ: steps of 1e-4, and of 0.3."""
    return _by_rho(setting, "ppl", ("dcgan", "fashion", "fashion-vae"), _long, ("step 1e-4", "step 0.3"))


def _long(setting: Setting, name: str, seed: int) -> Rows:
    subject = setting.subject(name)
    bank, generator = setting.bank(subject, seed), setting.subject(name).generator()
    rows = []
    for rho in cells.RHOS:
        log_w = cells.weights(bank, "feature", rho, 3)
        rng = np.random.default_rng((31, seed))
        z = rng.permutation(bank.z[polarity.resample(log_w, 800, "multinomial", rng)])
        same = (z[:400] == z[400:]).all(1)  # a path from a latent to itself has no length
        z = z[np.tile(~same, 2)]
        row = {"rho": rho, "ess": polarity.ess(log_w)}
        for step, key in ((paths.STEP, "step 1e-4"), (paths.LONG, "step 0.3")):
            found = paths.path_length(generator, step=step, latents=z, features=subject.describe, seed=seed)
            row[key] = float(found)
        rows.append(row)
    return rows


def spectra(setting: Setting) -> Rows:
    """The spread of log σ by ρ, and how far σ² is from the law of Marchenko and Pastur [Fig. 13]."""
    columns = ("mean log σ", "spread of log σ", "distance to law", "law's ratio")
    return _by_rho(setting, "spectra", tuple(world.SUBJECTS), _spectral, columns)


def _spectral(setting: Setting, name: str, seed: int) -> Rows:
    subject, rows = setting.subject(name), []
    bank = setting.bank(subject, seed)
    logs = bank.log_sigma["pixel"]
    for rho in cells.RHOS:
        log_w = cells.weights(bank, "pixel", rho, 3)
        drawn = logs[cells.draw(log_w, 500, np.random.default_rng((37, seed)))]
        sigma = np.exp(drawn)
        law = marchenko.marchenko_pastur(sigma / np.sqrt((sigma**2).mean(1, keepdims=True)))  # each of mean square 1
        row = {"rho": rho, "ess": polarity.ess(log_w), "mean log σ": float(drawn.mean())}
        row |= {"spread of log σ": float(drawn.std()), "distance to law": law.distance, "law's ratio": law.ratio}
        rows.append(row)
    return rows


Make = Callable[[Setting, str, int], Rows]


def _by_rho(setting: Setting, experiment: str, names: tuple[str, ...], make: Make, columns: tuple[str, ...]) -> Rows:
    """Mean ± s.e. over seeds of the columns, and of the difference from ρ = 0, a row for each generator and ρ."""
    rows = []
    for name in names:
        seeds = [
            kept(setting, experiment, name, seed, functools.partial(make, setting, name, seed), make)
            for seed in range(setting.seeds)
        ]
        zero = cells.RHOS.index(0.0)
        for i, rho in enumerate(cells.RHOS):
            row: dict[str, Any] = {"generator": name, "rho": rho, "ess": float(np.mean([s[i]["ess"] for s in seeds]))}
            for key in columns:
                row[key], row[f"{key} ±"] = summary([s[i][key] for s in seeds])
                row[f"Δ {key}"], row[f"Δ {key} ±"] = summary([s[i][key] - s[zero][key] for s in seeds])
            rows.append(row)
    return rows


# -------------------------------------------------------------------------------- distribution shift, colours [C.1]


def colours(setting: Setting) -> Rows:
    """A VAE that saw one cyan digit in five: how ρ moves the share of cyan, and which ρ suits which real share."""
    seeds = [
        kept(setting, "colours", "colours-vae", seed, functools.partial(_coloured, setting, seed), _coloured)
        for seed in range(setting.seeds)
    ]
    rows = []
    for i, first in enumerate(seeds[0]):
        row = {"space": first["space"], "rho": first["rho"], "ess": float(np.mean([s[i]["ess"] for s in seeds]))}
        for key in ("cyan", *(f"frechet at {share:g}" for share in SHIFTS)):
            row[key], row[f"{key} ±"] = summary([s[i][key] for s in seeds])
        row["cyan by bank"] = [round(s[i]["cyan"], 5) for s in seeds]
        rows.append(row)
    return rows


SHIFTS = (0.1, 0.2, 0.5, 0.8)
"""Shares of cyan among the real digits that are measured against; the VAE was trained at 0.2."""


def _coloured(setting: Setting, seed: int) -> Rows:
    net = setting.stores.trained("colours-vae")["decoder"]
    pool = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())
    subject = world.Subject("colours-vae", net[0].in_features, net[:-1], torch.sigmoid, pool, setting.stores.digits)
    bank = setting.bank(subject, seed)
    with torch.no_grad():
        x = torch.cat([subject.pixels(z) for z in torch.from_numpy(bank.z).split(500)])
    cyan = (x[:, 2].sum((1, 2)) > x[:, 0].sum((1, 2))).numpy()
    reals = {s: metrics_of(pool(training.coloured(setting.stores.digits, s, seed=seed)[0]).numpy()) for s in SHIFTS}
    rows = []
    for space in ("pixel", "feature"):
        for rho in cells.RHOS:
            log_w = cells.weights(bank, space, rho, 3)
            drawn = cells.draw(log_w, len(cyan) // 2, np.random.default_rng((41, seed)))
            row = {"space": space, "rho": rho, "ess": polarity.ess(log_w), "cyan": float(cyan[drawn].mean())}
            for share, fitted in reals.items():
                row[f"frechet at {share:g}"] = _frechet(fitted, bank.features[drawn])
            rows.append(row)
    return rows


def metrics_of(rows: Any) -> Any:
    """The Gaussian fitted to rows."""
    return cells.gaussians.fitted(rows)


def _frechet(fitted: Any, rows: Any) -> float:
    return cells.gaussians.frechet_of_factors(*fitted, *cells.gaussians.fitted(rows))


# -------------------------------------------------------------------------------------------------------- command


EXPERIMENTS: dict[str, Callable[[Setting], Any]] = {
    "sweep": lambda s: [row for name, seeds in sweep(s).items() for row in table(seeds, name)],
    "truncation": truncation,
    "norms": norms,
    "truncated-polarity": truncated_polarity,
    "sizes": sizes,
    "likelihood": likelihood,
    "path-lengths": path_lengths,
    "spectra": spectra,
    "colours": colours,
}


@click.command()
@click.option("--data", "folder", envvar="LIKEWISE_DATA", type=click.Path(path_type=Path), required=True)
@click.option("--fashion", default=training.FASHION, type=click.Path(path_type=Path), show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(EXPERIMENTS)), help="some of the experiments")
@click.option("--seeds", default=5, show_default=True, help="independent banks")
@click.option("--quick", is_flag=True, help="two seeds, small banks, nothing written to results/")
@click.option("--cells", "where", type=click.Path(path_type=Path), default=cache_folder() / "quality-distributions")
def distributions(folder: Path, fashion: Path, only: tuple[str, ...], seeds: int, quick: bool, where: Path) -> None:
    """The experiments of the level distributions, and which of the paper's claims hold."""
    torch.set_num_threads(1)
    where.mkdir(parents=True, exist_ok=True)
    setting = Setting(world.Stores(folder, where, fashion), 2 if quick else seeds, quick)
    found = {name: EXPERIMENTS[name](setting) for name in only or EXPERIMENTS}
    verdicts = claims.verdicts(found)
    for row in verdicts:
        click.echo(f"{row['verdict']:13} {row['claim']}: {row['figures']}")
    if not quick:
        written(found, verdicts, seeds, complete=not only)
        if "sweep" in found:
            cards.fill(found["sweep"], fashion)


def written(found: dict[str, Rows], verdicts: Rows, seeds: int, *, complete: bool) -> None:
    """Results and figures of what was measured; the verdicts only of a complete run."""
    command = "python benchmarks/quality.py distributions" + ("" if seeds == 5 else f" --seeds {seeds}")
    note = f"mean ± s.e. over {seeds} independent banks; ess: effective share of the bank"
    for name, rows in found.items():
        record(f"distributions-{name}", COLUMNS[name], _rounded(rows), command, note)
    if complete:
        record("distributions-claims", ["claim", "verdict", "figures"], verdicts, command, "computed from the tables")
    figures.draw(found)


def _rounded(rows: Rows) -> Rows:
    kept_keys = [{k: v for k, v in row.items() if not k.endswith("by bank")} for row in rows]
    return [{k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in kept_keys]


_THREE = ["frechet", "frechet ±", "precision", "precision ±", "recall", "recall ±"]
COLUMNS: dict[str, list[str]] = {
    "sweep": ["generator", "space", "k", "rho", "ess", "largest", *_THREE],
    "truncation": ["generator", "psi", "latent norm", *_THREE],
    "norms": ["generator", "space", "k", "rank correlation", "±"],
    "truncated-polarity": ["generator", "psi", "rho", "ess", "largest", *_THREE],
    "sizes": ["generator", "rho", "N", "effective latents", "distinct", *_THREE],
    "likelihood": ["generator", "rho", "ess", "bits a pixel", "bits a pixel ±"],
    "path-lengths": ["generator", "rho", "ess", "step 1e-4", "step 1e-4 ±", "step 0.3", "step 0.3 ±"],
    "spectra": ["generator", "rho", "ess", "mean log σ", "spread of log σ", "distance to law", "law's ratio"],
    "colours": ["space", "rho", "ess", "cyan", "cyan ±", *(f"frechet at {s:g}" for s in SHIFTS)],
}


if __name__ == "__main__":
    distributions()
