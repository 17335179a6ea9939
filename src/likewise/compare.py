"""compare(a, b): picks the level from what it is given, says which and why, and lets the level compare.

Two photos are compared at the level pixels, with their distance as images and the verdict of a search beside it. Up to
200 images, videos and sets of features are sets; more, and everything beside a generator, are distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from likewise import distributions, images, inputs, pixels, search, sets
from likewise.distributions.bank import Bank
from likewise.distributions.data import load
from likewise.distributions.generator import SPACES
from likewise.errors import InputError
from likewise.inputs import GENERATORS, Input, classify
from likewise.sets.data import describe
from likewise.types import Comparison, Flow

if TYPE_CHECKING:
    from likewise.images.compare import ImageComparison
    from likewise.search.result import Hit
    from likewise.search.verdict import Verdict
    from likewise.types import Matches

MOST = 200
"""The most images of a folder, or rows of features, that are a set; two that hold more are distributions.

Below some hundreds a Fréchet distance of 1280 dimensions says more about the number of samples than about them.
"""

OPTIONS = {
    "pixels": ("model", "features", "radius"),
    "images": ("model",),
    "sets": ("gamma", "metric", "value", "tol", "k", "every", "seed", "features", "on_error"),
    "distributions": ("features", "k", "n", "seed", "rho", "generator", "family", "on_error", "progress"),
}
"""The levels, and the options of each."""


def compare(a: Any, b: Any, *, level: str = "auto", **options: Any) -> AutoComparison:
    """Compare two photos, albums, videos, folders, sets of features or generators at the level that fits them.

    Parameters
    ----------
    a, b : path, array, Pillow image, Tensor, list, Signature, Generator or Bank
        Each in any form that `likewise.inputs` knows: an image, a folder, a video, a .npy or .npz of features, a file
        of weights; an array (h, w, 3), a tensor (3, h, w); a list of those; features (n, d); a generator or its name.
    level : {"auto", "pixels", "images", "sets", "distributions"}
        Overrides the choice.
    **options
        Those of the level, as `likewise.compare.OPTIONS` lists them.

    Returns
    -------
    AutoComparison
        The level's own comparison, with the level and the reason for it; for two photos also their image distance, the
        matches, and whether both show the same.

    Raises
    ------
    InputError
        An argument is nothing that can be compared, or the level does not take it.
    FileError
        A file is missing, damaged or of another kind.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> result = lw.compare(rng.normal(size=(9, 3)), rng.normal(1, 1, size=(7, 3)))
    >>> result.level, result.why, result.plan.shape
    ('sets', 'both are sets of features', (8, 7))
    """
    one, two = classify(a, "a"), classify(b, "b")
    chosen, why = choose(one, two) if level == "auto" else (level, "it was asked for")
    return compare_at(one, two, chosen, why, options)


def compare_at(a: Input, b: Input, level: str, why: str, options: dict[str, Any]) -> AutoComparison:
    """Compare two classified inputs at a level."""
    check(a, b, level, options)
    run = {"pixels": _pixels, "images": _images, "sets": _sets, "distributions": _distributions}[level]
    return run(a, b, why, options)


@dataclass(frozen=True, eq=False, repr=False)
class AutoComparison(Comparison):
    """A comparison with the level that was chosen for it, and why.

    `own` is the level's own comparison, whose attributes are reached from here too (`.flow`, `.plan`, `.recall` …).
    For two photos, `beside` is their comparison at the level images, `matches` are the features found again, and `pair`
    is what a search would say of them, with the `verdict`: do both show the same?
    `skipped` names what could not be read, with the reason.
    """

    level: str
    why: str
    own: Comparison
    beside: ImageComparison | None = None
    matches: Matches | None = None
    pair: Hit | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """Of two photos: same, different or unsure; None at other levels."""
        return None if self.pair is None else self.pair.verdict

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "own" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.own, name)

    def __repr__(self) -> str:
        near = "" if self.beside is None else f", image distance {self.beside.distance:.3g}"
        said = "" if self.pair is None else f"{self.pair.verdict} ({self.pair.probability:.0%}), "
        return f"{self.level}, because {self.why}: {said}{self.own!r}{near}"

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """The level's own plot. A matplotlib Figure."""
        return self.own.plot(path, **options)

    def to_dict(self) -> dict[str, Any]:
        """What the level says, with the level, the reason, and what stands beside it."""
        more: dict[str, Any] = {"skipped": [{"name": name, "reason": reason} for name, reason in self.skipped]}
        if self.level == "distributions":
            more = {}  # the level tells it itself, by side
        if self.beside is not None:
            more["images"] = self.beside.to_dict()
        if self.pair is not None:
            evidence = None if self.pair.evidence is None else self.pair.evidence.to_dict()
            more |= {"verdict": self.pair.verdict, "probability": self.pair.probability, "evidence": evidence}
        if self.matches is not None:
            more["matches"] = self.matches.to_dict()
        return {**self.own.to_dict(), "level": self.level, "why": self.why, **more}


# ── which level? ──────────────────────────────────────────────────────────────────────────────────────────────────


def choose(a: Input, b: Input) -> tuple[str, str]:
    """The level for two inputs, and the reason."""
    if a.kind == b.kind == "photo":
        return "pixels", "both are single photos"
    for side in (a, b):
        if side.kind == "generator":
            return "distributions", f"{side.where} is {side.words}"
    sizes = [side.count or 0 for side in (a, b)]
    if min(sizes) > MOST:
        return "distributions", f"both hold more than {MOST} ({sizes[0]:,} and {sizes[1]:,})"
    return "sets", _why_sets(a, b, sizes)


def _why_sets(a: Input, b: Input, sizes: list[int]) -> str:
    if max(sizes) > MOST:
        few, many = (a, b) if sizes[0] < sizes[1] else (b, a)
        return f"{few.where} is {few.words}, too few for a distribution, though {many.where} is {many.words}"
    if a.kind == b.kind == "video":
        return "both are videos"
    if a.kind == b.kind == "photos":
        return f"both hold at most {MOST} images ({sizes[0]} and {sizes[1]})"
    if a.kind == b.kind:
        return "both are sets of features"
    return f"a is {a.words} and b {b.words}"


def check(a: Input, b: Input, level: str, options: Mapping[str, Any]) -> None:
    """An InputError where a level does not take what it is given."""
    if level not in OPTIONS:
        raise InputError(f"level: expected auto, {', '.join(OPTIONS)}, got {level!r}")
    for side in (a, b):
        if level in ("pixels", "images") and side.kind != "photo":
            raise InputError(f"{side.where}: {level} compares two single photos, got {side.words}")
        if level == "sets" and side.kind == "generator":
            raise InputError(f"{side.where}: a set is finite, got {side.words}; compare it at the level distributions")
        if level == "distributions" and side.kind in ("photo", "video"):
            raise InputError(
                f"{side.where}: {side.words} has no distribution; give a folder of images, features or a generator"
            )
    for name in options:
        if name not in OPTIONS[level]:
            others = " and ".join(other for other in OPTIONS if name in OPTIONS[other])
            known = f"it is one of {others}" if others else f"it has {', '.join(OPTIONS[level])}"
            raise InputError(f"{name}: not an option of the level {level}; {known}")


# ── at its level ──────────────────────────────────────────────────────────────────────────────────────────────────


def _pixels(a: Input, b: Input, why: str, options: dict[str, Any]) -> AutoComparison:
    """The flow both ways, the distance of the photos, and the evidence and the verdict that a search has of them."""
    one, two = (inputs.image(side.item, where=side.where) for side in (a, b))  # decoded once, whatever asks for them
    given = dict(options)
    model = given.pop("model", None)
    model = pixels.default() if model is None else model
    own = pixels.compare(one, two, model=model)
    pair = search.pair(one, two)
    matches = None if pair.evidence is None else pair.evidence.matches
    if given:  # other features, or another radius: matched near the flow, beside the evidence
        flows = Flow(own.flow, own.confidence >= 0.5), own.back
        matches = pixels.match(one, two, guide=flows, flow_size=getattr(model, "work", None), **given)
    return AutoComparison(own.distance, "pixels", why, own, images.compare(one, two), matches, pair)


def _images(a: Input, b: Input, why: str, options: dict[str, Any]) -> AutoComparison:
    own = images.compare(a.item, b.item, **options)
    return AutoComparison(own.distance, "images", why, own)


def _sets(a: Input, b: Input, why: str, options: dict[str, Any]) -> AutoComparison:
    reading = {name: options[name] for name in ("k", "every", "seed", "features", "on_error") if name in options}
    own_options = {name: value for name, value in options.items() if name not in reading}
    skipped: list[tuple[str, str]] = []
    p, q = (describe(side.item, where=side.where, skipped=skipped, **reading) for side in (a, b))
    own = sets.compare(p, q, **own_options)
    return AutoComparison(own.distance, "sets", why, own, skipped=tuple(skipped))


def _distributions(a: Input, b: Input, why: str, options: dict[str, Any]) -> AutoComparison:
    given = dict(options)
    drawn = {name: given.pop(name, None) for name in ("rho", "generator", "family")}
    one, two = _opened(a), _opened(b)
    if drawn["rho"] is not None and not any(hasattr(side.item, "log_sigma") for side in (one, two)):
        raise InputError("rho: only a bank can be sampled with a polarity; harvest one of the generator, and give that")
    sources = [_source(side, other, drawn, given) for side, other in ((one, two), (two, one))]
    own = distributions.compare(*sources, **given)
    skipped = (*own.real.skipped, *own.fake.skipped)
    return AutoComparison(own.distance, "distributions", why, own, skipped=skipped)


def _opened(side: Input) -> Input:
    """A bank's folder as the bank."""
    folder = side.kind == "generator" and isinstance(side.item, Path) and side.item.is_dir()
    return Input(Bank.open(side.item), "generator", side.words, side.where) if folder else side


def _source(side: Input, other: Input, drawn: dict[str, Any], given: dict[str, Any]) -> Any:
    """What the level distributions reads: a generator by its name is loaded, a bank is sampled."""
    if side.kind != "generator":
        return side.item
    if hasattr(side.item, "log_sigma"):
        return _sampled(side, other, drawn, given)
    return load(side.item, family=drawn["family"]) if isinstance(side.item, str) else side.item


def _sampled(side: Input, other: Input, drawn: dict[str, Any], given: dict[str, Any]) -> Any:
    """Images of a bank's generator at latents that are sampled from the bank, as many as the other side has."""
    bank = side.item
    generator = _generator_of(side, drawn)
    n = given.get("n") or other.count or len(bank)
    draw = bank.draw(n, 0.0 if drawn["rho"] is None else drawn["rho"], seed=given.get("seed", 0))
    parts = [slice(i, i + 64) for i in range(0, n, 64)]  # 64: as many images as features are extracted of at a time
    if draw.labels is None:
        return torch.cat([generator(draw.latents[part]) for part in parts])
    return torch.cat([generator(draw.latents[part], draw.labels[part]) for part in parts])


def _generator_of(side: Input, drawn: dict[str, Any]) -> Any:
    """The generator of a bank: the one that is given, or the shipped one whose name the bank bears."""
    about, named = side.item.about, drawn["generator"]
    if named is None:
        named = about.name.removeprefix("likewise-")
        if named not in GENERATORS:
            raise InputError(f"generator: {side.where} is a bank of {about.name}; give the generator that it came from")
    generator = load(named, family=drawn["family"]) if isinstance(named, str | Path) else named
    if about.space in SPACES:
        side.item.check(generator.in_space(about.space))
    return generator
