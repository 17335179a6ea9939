"""compare(a, b): picks the level from what it is given, says which and why, and lets the level compare.

Two photos are compared at the level pixels, with their distance as images and the verdict of a search beside it. Up to
200 images, videos and sets of features are sets; more, and everything beside a generator, are distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from likewise import distributions, images, inputs, media, numeric, pixels, search, sets
from likewise.distributions.bank import Bank
from likewise.distributions.data import load
from likewise.distributions.generator import SPACES
from likewise.errors import InputError
from likewise.inputs import GENERATORS, Input, classify
from likewise.nn.features import Rows
from likewise.nn.pretrained import DEFAULT
from likewise.sets import scale as scales
from likewise.sets.data import describe
from likewise.sets.scale import Scale
from likewise.types import Comparison, Flow, Signature

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
    "sets": ("gamma", "metric", "value", "tol", "k", "every", "seed", "features", "on_error", "reference"),
    "distributions": ("features", "k", "n", "seed", "rho", "generator", "family", "on_error", "progress"),
}
"""The levels, and the options of each."""
STANDARD = {"gamma": "auto", "value": "divergence", "k": 8}
"""The options with which the reference that ships was measured."""
HALF, DRAWS = 500, 2
"""Of collections, rows of a random half at most, and how often it is drawn: a second of two cores."""


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
        Those of the level, as `likewise.compare.OPTIONS` lists them. Of sets `reference` is an index of photos of your
        own, whose albums tell how unusual the distance is.

    Returns
    -------
    AutoComparison
        The level's own comparison, with the level and the reason for it; for two photos also their image distance, the
        matches, and whether both show the same; for albums and collections `.scale`, how unusual the distance is.

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
    `scale` says of albums and collections how unusual the distance is, or is false and says why not.
    `skipped` names what could not be read, with the reason.
    """

    level: str
    why: str
    own: Comparison
    beside: ImageComparison | None = None
    matches: Matches | None = None
    pair: Hit | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    scale: Scale | None = None

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
        said = "" if self.pair is None else f"{self.pair.verdict} ({self.pair.percent}), "
        return f"{self.level}, because {self.why}: {said}{self.own!r}{near}{f'; {self.scale}' if self.scale else ''}"

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
        if self.scale is not None:
            more["scale"] = self.scale.to_dict()
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
    solving = {name: options[name] for name in ("gamma", "metric", "value", "tol") if name in options}
    skipped, counts = list[tuple[str, str]](), list[int]()
    p, q = (describe(side.item, where=side.where, skipped=skipped, counts=counts, **reading) for side in (a, b))
    own = sets.compare(p, q, **solving)
    scale = _scale((a, b), (p, q), own.distance, counts, options)
    return AutoComparison(own.distance, "sets", why, own, skipped=tuple(skipped), scale=scale)


def _scale(
    sides: tuple[Input, Input],
    signed: tuple[Signature, Signature],
    distance: float,
    counts: list[int],
    options: dict[str, Any],
) -> Scale:
    """How unusual the distance of two albums is, in the user's index where one is named, else in what ships."""
    if len(counts) < 2:
        return Scale(reason="features of your own have no scale")
    if options.get("features") not in (None, "default", "embed") or options.get("metric") is not None:
        return Scale(reason="only the default features have a scale, without a metric")
    note = ""
    if options.get("reference") is not None and min(counts) > 1:
        unrelated, note = _unrelated(sides, counts, options)
        if unrelated:
            return scales.among(scales.ratio(distance, *signed), unrelated, note)
    changed = [name for name, usual in STANDARD.items() if options.get(name, usual) != usual]
    if changed:
        words = f"what ships was measured with the default {' and '.join(changed)}"
        return Scale(reason="; ".join(filter(None, (note, words))))
    return scales.of_albums(distance, signed, counts, note)


def _unrelated(sides: tuple[Input, Input], counts: list[int], options: dict[str, Any]) -> tuple[list[float], str]:
    """Distances of unrelated albums of an index in units of their spread, and what they are of; or none, and why.

    Embeddings are those that the index keeps, brought back from its vectors: no photo is opened.
    """
    place, seed = options["reference"], options.get("seed", 0)
    with search.Collection.open(place) as collection:
        if collection.about.model != DEFAULT:
            return [], f"{place} was made by {collection.about.model}"
        own = {collection.name_of(path) for side in sides for path in _files(side.item)}
        names = sorted(collection.index.names(), key=lambda name: media.natural(Path(name)))
        albums, what = scales.albums(names, *counts, leave_out=own, seed=seed)
        if not albums:
            return [], what
        rows = collection.embeddings([*{name for album in albums for part in album for name in part}])
    k = options.get("k", STANDARD["k"])
    signed = [[sets.signature([rows[n] for n in part if n in rows], k, seed) for part in album] for album in albums]
    solving = {name: options[name] for name in ("gamma", "value", "tol") if name in options}
    pairs = [(signed[i][0], signed[j][1]) for i, j in scales.pairs(len(albums), seed)]
    ratios = [scales.ratio(sets.compare(p, q, **solving).distance, p, q) for p, q in pairs]
    return ratios, f"{len(pairs)} pairs of {len(albums)} {what} of {place}"


def _files(item: Any) -> list[Path]:
    """The files of an album, where it is made of files."""
    if isinstance(item, list):
        return [path for one in item for path in _files(one)]
    if isinstance(item, str | Path):
        return media.images(item) if Path(item).is_dir() else [Path(item)]
    return [] if getattr(item, "path", None) is None else [item.path]


def _distributions(a: Input, b: Input, why: str, options: dict[str, Any]) -> AutoComparison:
    given = dict(options)
    drawn = {name: given.pop(name, None) for name in ("rho", "generator", "family")}
    one, two = _opened(a), _opened(b)
    if drawn["rho"] is not None and not any(hasattr(side.item, "log_sigma") for side in (one, two)):
        raise InputError("rho: only a bank can be sampled with a polarity; harvest one of the generator, and give that")
    sources = [_source(side, other, drawn, given) for side, other in ((one, two), (two, one))]
    own = distributions.compare(*sources, **given)
    skipped = (*own.real.skipped, *own.fake.skipped)
    scale = _halves(own.real.rows, own.fake.rows, given.get("seed", 0))
    return AutoComparison(own.distance, "distributions", why, own, skipped=skipped, scale=scale)


def _halves(a: Rows, b: Rows, seed: int) -> Scale:
    """The Fréchet distance of halves of two collections, beside that of two halves of one: all of one size.

    It depends on how many rows there are, so that the distance of a and b is beside that of no halves.
    """
    size = min(len(a), len(b), 2 * HALF) // 2
    if size < 2:
        return Scale(reason="halves of fewer than four samples have no distance")

    def apart(x: Any, y: Any) -> float:
        return numeric.frechet_of_factors(*x, *y)

    across, within = list[float](), list[tuple[float, float]]()
    for draw in range(DRAWS):
        (p, q), (r, s) = (
            [
                numeric.fitted(side[part])
                for part in np.random.default_rng((seed, draw)).permutation(len(side))[: 2 * size].reshape(2, size)
            ]
            for side in (a, b)
        )
        across += [apart(p, s), apart(q, r)]
        within.append((apart(p, q), apart(r, s)))
    usual = float(np.mean(within, axis=0).max())
    if usual <= 0:
        return Scale(reason="two halves of one are the same")
    times = float(np.mean(across)) / usual
    words = f"{times:.2g} times as far apart as random halves of either are"
    if times < 1.1:  # what halves of one differ by from draw to draw
        words = "no farther apart than random halves of either are"
    return Scale(None, times, words, f"halves of {size:,}, drawn {DRAWS} times")


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
