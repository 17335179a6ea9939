"""The tab Distributions: a generator and its bank, dialled by ρ and ψ; what that does to precision and recall."""

from __future__ import annotations

import base64
import concurrent.futures
import io as bytes_io
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from likewise import media
from likewise.errors import ConvergenceWarning, LikewiseError
from likewise.studio.asked import Fields, Gone, identity, number, text, whole
from likewise.studio.drawing import RGB, tiles
from likewise.studio.jobs import Work
from likewise.studio.store import Recent, Store

RHO, PSI = (-5.0, 5.0), (0.3, 1.0)
RHOS = (-5.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
LEAST_ESS = 0.02
"""Where the curve is measured: not where so small a share of the bank carries the weight that it says nothing of ρ."""
FIRST, LATENTS, OWN_LATENTS, SHARD = 192, 1024, 256, 64
"""Latents after which the page can begin; of a shipped generator's bank, and of the user's own; and of one shard."""
TOP = 1
"""Singular values in a volume: with one, a bank of this size bears the whole range of ρ."""
MEASURED, REFERENCE = 300, 600
"""Pictures of each ρ that are measured, and those that they are measured against."""
MOST, EDGE, MODES = 100, 84, 24
"""Pictures of a grid, pixels of each, and modes and anti-modes that are shown."""
KEPT = 3

WORDS = {
    "fashion": "A small GAN of clothes, 28 × 28 pixels, that comes with likewise.",
    "fashion-vae": "The VAE that the GAN began as: smoother, less sharp.",
}
ITSELF = (
    "Measured against {n} further samples of the generator itself at ρ = 0, ψ = 1: precision and recall say how far a "
    "dial departs from what it does by itself, not from real pictures; --real FOLDER measures against those."
)


@dataclass(eq=False)
class Dialled:
    """A generator with its bank, what it is measured against, and the curve as far as it is measured."""

    name: str
    generator: Any
    describe: Any
    bank: Any
    truth: Any = None
    words: str = ""
    curve: list[dict[str, float]] = field(default_factory=list)
    truncated: dict[float, Any] = field(default_factory=dict)

    def at(self, psi: float) -> Any:
        """The generator truncated to ψ; the last few are kept."""
        if psi not in self.truncated:
            if len(self.truncated) > 16:
                self.truncated.clear()
            self.truncated[psi] = self.generator.truncated(psi)
        return self.truncated[psi]


class Distributions:
    """What the tab asks for."""

    def __init__(
        self, store: Store, own: str | None = None, real: Path | None = None, cache: Path | None = None
    ) -> None:
        self.store, self.own, self.real = store, own, real
        self.cache = (cache or media.cache_folder()) / "studio"
        self._kept: Recent[Dialled] = Recent(KEPT, "this generator")
        self.latents = LATENTS

    def generators(self) -> list[dict[str, str]]:
        """Those that come with likewise, and the one of the command line first."""
        shipped = [{"name": name, "words": words} for name, words in WORDS.items()]
        return ([{"name": self.own, "words": "The generator of the command line."}] if self.own else []) + shipped

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, work: Work, fields: Fields) -> dict[str, Any]:
        """A generator's bank, harvested where there is none yet, and the curve along ρ, told as it grows."""
        name = text(fields, "name")
        if name not in {g["name"] for g in self.generators()}:
            raise Gone("this generator")
        work.say("loading the generator")
        dialled = self._loaded(name)
        total = self.latents if name in WORDS else min(self.latents, OWN_LATENTS)
        for n in sorted({min(FIRST, total), total}):
            dialled.bank = self._bank(work, dialled, n)
            key = self._kept.put(dialled, self._key(dialled))
            pictures = self._extremes(dialled)
            work.partial(self._answer(key, dialled, pictures))
        self._measure(work, dialled, lambda: work.partial(self._answer(key, dialled, pictures)))
        return self._answer(key, dialled, pictures)

    def _loaded(self, name: str) -> Dialled:
        from likewise.distributions import load_generator, shipped
        from likewise.distributions.shipped import describer

        if name in WORDS:
            describe = describer("fashion")
            return Dialled(name, shipped(name), describe, None)
        return Dialled(name, load_generator(name), None, None)

    def _key(self, dialled: Dialled) -> str:
        """One id a generator: opening it again does not fill the memory."""
        found = [key for key, kept in self._kept.items() if kept.name == dialled.name]
        return found[0] if found else ""

    def _bank(self, work: Work, dialled: Dialled, n: int) -> Any:
        """n latents with their volumes, in the user's cache folder: there at once the next time.

        Each n has a folder of its own: a harvest that was interrupted is gone on with, and hides no smaller one.
        """
        from likewise.distributions import harvest

        k, words = min(TOP, dialled.generator.dim), "measuring volumes, once"
        folder = self.cache / f"bank-{dialled.generator.digest[:20]}-{k}-{n}"
        work.say(words)
        here = InPlace(lambda done: work.say(f"{words}: {min(done * SHARD, n)} of {n}", min(1.0, done * SHARD / n)))
        options = {"k": k, "shard_size": SHARD, "executor": here, "progress": False}
        try:
            return harvest(dialled.generator, n, out=folder, **options)
        except LikewiseError:
            raise
        except OSError:  # a cache that cannot be written to
            return harvest(dialled.generator, n, out=self.store.folder / folder.name, **options)

    def _extremes(self, dialled: Dialled) -> dict[str, str]:
        """Modes and anti-modes of the bank as pictures."""
        from likewise.distributions.sweeps import modes

        count = min(MODES, int((~dialled.bank.dead()).sum()))
        found = modes(dialled.generator, dialled.bank, count) if count else ([], [])
        sheets = [tiles(_made(dialled.generator, dialled.bank, rows), 8) for rows in found if len(rows)]
        urls = [f"api/files/{self.store.write(sheet, '.png')}" for sheet in sheets]
        return dict(zip(("modes", "antimodes"), urls, strict=False))

    def _answer(self, key: str, dialled: Dialled, pictures: dict[str, str]) -> dict[str, Any]:
        k, n = dialled.bank.k, len(dialled.bank)
        volume = "the largest singular value" if k == 1 else f"the product of the {k} largest singular values"
        words = f"{n} latents; a latent's volume is {volume} of the generator's Jacobian there. {dialled.words}"
        curve = sorted(dialled.curve, key=lambda p: p["rho"])
        dials = {"rho": list(RHO), "psi": list(PSI)}
        return {"key": key, "n": n, "k": k, **dials, "curve": curve, **pictures, "words": words.strip()}

    # ── the curve ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _measure(self, work: Work, dialled: Dialled, told: Callable[[], None]) -> None:
        """The curve at ψ = 1: from the cache folder, or measured now, from the middle outwards."""
        bank, count = dialled.bank, REFERENCE if self.real is None else "real"
        file = self.cache / f"curve-{dialled.generator.digest[:20]}-{len(bank)}-{bank.k}-{MEASURED}-{count}.json"
        kept = None if self.real is not None else _curve_in(file)
        self._refer(work, dialled)
        if kept is not None:
            dialled.curve = kept
            return
        dialled.curve = []
        rhos = [rho for rho in sorted(RHOS, key=abs) if bank.ess(rho) >= LEAST_ESS]
        for i, rho in enumerate(rhos):
            work.say(f"measuring ρ = {rho:g}", i / len(rhos))
            dialled.curve.append(measured(dialled, rho, 1.0))
            told()
        if self.real is None:
            _written(file, dialled.curve)

    def _refer(self, work: Work, dialled: Dialled) -> None:
        """What the dials are measured against: real pictures where some were given, or else the generator itself."""
        from likewise.nn.features import channels_of, extract

        work.say("describing what it is measured against")
        if self.real is None:
            source: Any = dialled.generator.draw(REFERENCE, seed=2**31)
            dialled.words = ITSELF.format(n=REFERENCE)
        else:
            source = self.real
            dialled.words = f"Measured against the pictures of {self.real}."
        dialled.truth = extract(source, dialled.describe, where="real", planes=channels_of(dialled.generator))

    def point(self, fields: Fields) -> dict[str, float]:
        """Precision, recall and Fréchet distance at one ρ and ψ, measured now."""
        dialled = self._kept.get(identity(fields, "key"))
        rho, psi = number(fields, "rho", *RHO), number(fields, "psi", *PSI, default=1.0)
        if dialled.truth is None:
            raise Gone("the sample that is measured against")
        return measured(dialled, rho, psi)

    # ── the grid ──────────────────────────────────────────────────────────────────────────────────────────────────

    def grid(self, fields: Fields) -> dict[str, Any]:
        """n pictures drawn from the bank at ρ, truncated to ψ [Polarity Algorithm 1]."""
        began = time.perf_counter()
        dialled = self._kept.get(identity(fields, "key"))
        rho, psi = number(fields, "rho", *RHO), number(fields, "psi", *PSI, default=1.0)
        n, seed = whole(fields, "n", 1, MOST, 36), whole(fields, "seed", 0, 2**31 - 1, 0)
        drawn = dialled.bank.draw(n, rho, seed=seed)
        sheet = tiles(_shown(dialled.at(psi), drawn.latents, drawn.labels), _across(n), edge=EDGE)
        image = f"data:image/png;base64,{base64.b64encode(_png(sheet)).decode()}"
        ms = round(1000 * (time.perf_counter() - began), 1)
        return {"image": image, "ess": drawn.ess, "ms": ms, "point": between(dialled.curve, rho) if psi == 1 else None}


def measured(dialled: Dialled, rho: float, psi: float) -> dict[str, float]:
    """A point of the plane of ρ and ψ: MEASURED pictures against what is referred to."""
    from likewise.distributions import metrics
    from likewise.nn.features import extract

    drawn = dialled.bank.draw(MEASURED, rho, seed=1)
    pictures = dialled.at(psi)(drawn.latents, drawn.labels)
    found = metrics.measures(dialled.truth, extract(pictures, dialled.describe, where="generator"))
    figures = {name: float(found[name]) for name in ("precision", "recall", "frechet")}
    return {"rho": rho, "psi": psi, **figures, "ess": drawn.ess}


def hush() -> None:
    """Let warnings about weights, samples and plans pass unsaid from now on: the page shows what they would say."""
    from likewise.distributions.metrics import SmallSampleWarning
    from likewise.distributions.polarity import DegeneracyWarning

    for kind in (SmallSampleWarning, DegeneracyWarning, ConvergenceWarning):
        warnings.filterwarnings("ignore", category=kind)


def between(curve: Sequence[dict[str, float]], rho: float) -> dict[str, float] | None:
    """The curve at a ρ, straight from one measured point to the next; None outside of what is measured."""
    points = sorted(curve, key=lambda p: p["rho"])
    rhos = [p["rho"] for p in points]
    if not rhos or not rhos[0] <= rho <= rhos[-1]:
        return None
    names = ("precision", "recall", "frechet")
    return {"rho": rho, **{name: float(np.interp(rho, rhos, [p[name] for p in points])) for name in names}}


class InPlace(concurrent.futures.Executor):
    """Runs each shard here and now, and tells how many are done: so a harvest can be watched, and cancelled."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self.told, self.done = told, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """A future that is done already."""
        self.told(self.done)
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        self.done += 1
        self.told(self.done)
        return future


def _made(generator: Any, bank: Any, rows: Any) -> list[RGB]:
    return _shown(generator, bank.latents[rows], None if bank.labels is None else bank.labels[rows])


def _shown(generator: Any, latents: Any, labels: Any) -> list[RGB]:
    from likewise.nn.features import to_uint8

    return to_uint8(generator(latents, labels))


def _across(n: int) -> int:
    return int(np.ceil(np.sqrt(n)))


def _png(sheet: RGB) -> bytes:
    from PIL import Image

    buffer = bytes_io.BytesIO()
    Image.fromarray(sheet).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _curve_in(file: Path) -> list[dict[str, float]] | None:
    """The curve that was measured before, or None where there is none or it is damaged."""
    try:
        points = json.loads(file.read_text(encoding="utf-8"))["curve"]
        names = ("rho", "psi", "precision", "recall", "frechet", "ess")
        found = [{name: float(p[name]) for name in names} for p in points]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found and all(np.isfinite(list(p.values())).all() for p in found) else None


def _written(file: Path, curve: list[dict[str, float]]) -> None:
    """Keep a curve for the next session; a folder that cannot be written to is passed over."""
    try:
        media.write_text(file, json.dumps({"curve": curve}, indent=2, allow_nan=False) + "\n")
    except OSError:
        return
