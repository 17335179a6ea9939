"""The tab Generators: a generator and its bank, resampled at ρ and ψ; quality and diversity along ρ."""

from __future__ import annotations

import base64
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from likewise.distributions import fashion_features, harvest, load, metrics
from likewise.distributions.sweep import modes
from likewise.nn.features import channels_of, extract, to_uint8
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, not_found, number, text, whole
from likewise.studio.uploads import RGB, ImageStore, Recent

RHO, PSI = (-5.0, 5.0), (0.3, 1.0)
RHOS = (-5.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
LEAST_ESS = 0.02
"""Where the curve is measured: not where so small a share of the bank carries the weight that it says nothing of ρ."""
FIRST, LATENTS, OWN_LATENTS, SHARD = 192, 1024, 256, 64
"""Latents after which the page can begin; of a shipped generator's bank, and of the user's own; and of one shard."""
TOP = 1
"""Singular values in a volume: with one, a bank of this size bears the whole range of ρ."""
MEASURED, REFERENCE = 300, 600
"""Images of each ρ that are measured, and those that they are measured against."""
LIMIT, EDGE, MODES = 100, 84, 24
"""Images of a grid, pixels of each, and modes and anti-modes that are shown."""
KEPT = 3

WORDS = {
    "fashion": "A small GAN of clothes, 28 × 28 pixels, that comes with likewise.",
    "fashion-vae": "The VAE that the GAN began as: smoother, less sharp.",
}
ITSELF = (
    "Measured against {n} further samples of the generator itself at ρ = 0, ψ = 1: precision and recall say how far a "
    "setting departs from plain sampling, not from real images; --real FOLDER measures against those."
)


@dataclass(eq=False)
class Opened:
    """A generator with its bank, the features it is measured against, and the curve as far as it is measured."""

    name: str
    generator: Any
    describe: Any
    bank: Any = None
    reference: Any = None
    words: str = ""
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Latents of its whole bank."""
        return LATENTS if self.name in WORDS else OWN_LATENTS

    def measure(self, rho: float, psi: float) -> dict[str, float]:
        """A point of the plane of ρ and ψ: MEASURED samples against the reference."""
        drawn = self.bank.draw(MEASURED, rho, seed=1)
        samples = extract(self.generator.truncated(psi)(drawn.latents, drawn.labels), self.describe, where="generator")
        values = metrics.measures(self.reference, samples)
        figures = {name: float(values[name]) for name in ("precision", "recall", "frechet")}
        return {"rho": rho, "psi": psi, **figures, "ess": drawn.ess}


class Tab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.cache, self.own, self.real = store, cache, given.generator, given.real
        self._kept: Recent[Opened] = Recent(KEPT, "this generator")

    def generators(self) -> list[dict[str, str]]:
        """Those that come with likewise, and the one of the command line first."""
        own = [{"name": self.own, "words": "The generator of the command line."}] if self.own else []
        return own + [{"name": name, "words": words} for name, words in WORDS.items()]

    def open(self, work: Work, fields: Fields) -> dict[str, Any]:
        """A generator with a small bank, harvested where there is none yet: enough to sample from."""
        name = text(fields, "name")
        if name not in {generator["name"] for generator in self.generators()}:
            raise not_found("this generator")
        work.report("loading the generator")
        opened = Opened(name, load(name), fashion_features() if name in WORDS else None)
        opened.bank = self._bank(work, opened, min(FIRST, opened.total))
        key = self._kept.put(opened, opened.generator.digest[:20])  # opening it again does not fill the memory
        return self._answer(key, opened, self._extremes(opened))

    def measure(self, work: Work, fields: Fields) -> dict[str, Any]:
        """The whole bank of a generator that is open, and the curve along ρ, reported as it grows."""
        key = text(fields, "key")
        opened = self._kept.get(key)
        opened.bank = self._bank(work, opened, opened.total)
        images = self._extremes(opened)
        work.partial(self._answer(key, opened, images))
        self._measure(work, opened, lambda: work.partial(self._answer(key, opened, images)))
        return self._answer(key, opened, images)

    def _bank(self, work: Work, opened: Opened, n: int) -> Any:
        """n latents with their volumes, in the cache folder: there at once the next time.

        Each n has a folder of its own: a harvest that was interrupted resumes, and hides no smaller one.
        """
        words, folder = "measuring volumes, once", self.cache / f"bank-{opened.generator.digest[:20]}-{TOP}-{n}"
        work.report(words)
        here = InPlace(lambda done: work.report(f"{words}: {min(done * SHARD, n)} of {n}", min(1.0, done * SHARD / n)))
        return harvest(opened.generator, n, out=folder, k=TOP, shard_size=SHARD, executor=here, progress=False)

    def _extremes(self, opened: Opened) -> dict[str, str]:
        """Modes and anti-modes of the bank as sheets of images."""
        bank, sheets = opened.bank, {}
        count = min(MODES, int((~bank.dead()).sum()))
        if count:
            ends = modes(opened.generator, bank, count)
            for name, rows in zip(("modes", "antimodes"), ends, strict=True):
                labels = None if bank.labels is None else bank.labels[rows]
                made = to_uint8(opened.generator(bank.latents[rows], labels))
                sheets[name] = self.store.publish(tile(made, 8), ".png")
        return sheets

    def _answer(self, key: str, opened: Opened, images: dict[str, str]) -> dict[str, Any]:
        n = len(opened.bank)
        volume = "the largest singular value of the generator's Jacobian there"
        words = f"{n} latents; a latent's volume is {volume}. {opened.words}"
        curve = sorted(opened.curve, key=lambda point: point["rho"])
        ranges = {"rho": list(RHO), "psi": list(PSI)}
        return {"key": key, "n": n, **ranges, "curve": curve, **images, "words": words.strip()}

    def _measure(self, work: Work, opened: Opened, report: Callable[[], None]) -> None:
        """The curve at ψ = 1, from ρ = 0 outwards."""
        self._refer(work, opened)
        opened.curve.clear()
        rhos = [rho for rho in sorted(RHOS, key=abs) if opened.bank.ess(rho) >= LEAST_ESS]
        for i, rho in enumerate(rhos):
            work.report(f"measuring ρ = {rho:g}", i / len(rhos))
            opened.curve.append(opened.measure(rho, 1.0))
            report()

    def _refer(self, work: Work, opened: Opened) -> None:
        """What the settings are measured against: real images where some were given, or else the generator itself."""
        work.report("embedding what it is measured against")
        if self.real is None:
            source: Any = opened.generator.draw(REFERENCE, seed=2**31)
            opened.words = ITSELF.format(n=REFERENCE)
        else:
            source = self.real
            opened.words = f"Measured against the images of {self.real}."
        opened.reference = extract(source, opened.describe, where="real", planes=channels_of(opened.generator))

    def point(self, fields: Fields) -> dict[str, float]:
        """Precision, recall and Fréchet distance at one ρ and ψ, measured now."""
        opened = self._kept.get(text(fields, "key"))
        rho, psi = number(fields, "rho", *RHO), number(fields, "psi", *PSI, default=1.0)
        if opened.reference is None:
            raise not_found("the sample that is measured against")
        return opened.measure(rho, psi)

    def grid(self, fields: Fields) -> dict[str, Any]:
        """n images sampled from the bank at ρ, truncated to ψ [Polarity Algorithm 1]."""
        began = time.perf_counter()
        opened = self._kept.get(text(fields, "key"))
        rho, psi = number(fields, "rho", *RHO), number(fields, "psi", *PSI, default=1.0)
        n, seed = whole(fields, "n", 1, LIMIT, 36), whole(fields, "seed", 0, 2**31 - 1, 0)
        drawn = opened.bank.draw(n, rho, seed=seed)
        sheet = tile(to_uint8(opened.generator.truncated(psi)(drawn.latents, drawn.labels)), int(np.ceil(np.sqrt(n))))
        _, png = cv2.imencode(".png", sheet[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])
        image = f"data:image/png;base64,{base64.b64encode(png.tobytes()).decode()}"
        return {"image": image, "ess": drawn.ess, "ms": round(1000 * (time.perf_counter() - began), 1)}


def tile(images: Sequence[RGB], across: int, *, gap: int = 4) -> RGB:
    """Images in rows of `across`, each EDGE pixels wide and high; small ones are enlarged pixel by pixel."""
    rows, step = -(-len(images) // across), EDGE + gap
    sheet = np.full((rows * step - gap, across * step - gap, 3), 245, dtype=np.uint8)
    for i, image in enumerate(images):
        how = cv2.INTER_NEAREST if max(image.shape[:2]) <= EDGE else cv2.INTER_AREA
        top, left = step * (i // across), step * (i % across)
        sheet[top : top + EDGE, left : left + EDGE] = cv2.resize(image, (EDGE, EDGE), interpolation=how)
    return sheet


class InPlace(concurrent.futures.Executor):
    """Runs each shard here and now, and reports how many are done: so a harvest can be watched, and cancelled."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self.report, self.done = report, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """A future that is done already."""
        self.report(self.done)
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        self.done += 1
        return future
