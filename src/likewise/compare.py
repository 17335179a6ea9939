"""compare(a, b): picks the level from what it is given, says which and why, and lets the level compare.

two single photos                                  pixels, with the distance of the level images beside it
albums, videos, folders of up to MOST pictures     sets
two folders of more than that, or a generator      distributions

What is not alike is a mixture: a photo and an album are two sets, one of them of one picture; a small folder and a
large one are two sets, since a few pictures have no distribution; beside a generator everything is a distribution.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.errors import FileError, InputError
from likewise.inputs import Told, told
from likewise.types import Comparison, Signature

if TYPE_CHECKING:
    from likewise.images.compare import ImageComparison
    from likewise.search.result import Found
    from likewise.search.verdict import Verdict
    from likewise.types import Matches

MOST = 200
"""The most pictures of a folder, or rows of features, that are a set; two that hold more are distributions."""

OPTIONS = {
    "pixels": ("model", "features", "radius"),
    "images": ("model",),
    "sets": ("gamma", "metric", "value", "tol", "k", "every", "seed", "describe", "on_error"),
    "distributions": ("describe", "k", "n", "seed", "rho", "generator", "family", "on_error", "progress"),
}
"""The levels, and the options of each."""


def compare(a: Any, b: Any, *, level: str = "auto", **options: Any) -> Chosen:
    """Compare two photos, albums, videos, folders, bags of features or generators at the level that fits them.

    Each of a and b is a path (a picture, a folder, a video, a .npy or .npz of features, a file of weights), a picture
    (an array (h, w, 3), a Pillow image, a tensor (3, h, w)), a list of those, features (n, d), a Signature, a
    Generator, its name, or a Bank. `level` overrides the choice. `options` are those of the level (`OPTIONS`).
    """
    one, two = told(a, "a"), told(b, "b")
    chosen, why = choose(one, two) if level == "auto" else (level, "it was asked for")
    return between(one, two, chosen, why, options)


def between(a: Told, b: Told, level: str, why: str, options: dict[str, Any]) -> Chosen:
    """Compare two things, told already, at a level."""
    check(a, b, level, options)
    run = {"pixels": _pixels, "images": _images, "sets": _sets, "distributions": _distributions}[level]
    return run(a, b, why, options)


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(Comparison):
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
    pair: Found | None = None
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
        """The level's own picture. A matplotlib Figure."""
        return self.own.plot(path, **options)

    def to_dict(self) -> dict[str, Any]:
        """What the level says, with the level, the reason, and what stands beside it."""
        more: dict[str, Any] = {"skipped": [{"name": name, "reason": reason} for name, reason in self.skipped]}
        if self.level == "distributions":
            more = {}  # the level tells it itself, by side
        if self.beside is not None:
            more["images"] = self.beside.to_dict()
        if self.pair is not None:
            more |= {"verdict": self.pair.verdict, "probability": self.pair.probability}
        if self.matches is not None:
            more["matches"] = self.matches.to_dict()
        return {**self.own.to_dict(), "level": self.level, "why": self.why, **more}


# ── which level? ──────────────────────────────────────────────────────────────────────────────────────────────────


def choose(a: Told, b: Told) -> tuple[str, str]:
    """The level for two things, and the reason."""
    if a.kind == b.kind == "photo":
        return "pixels", "both are single photos"
    for side in (a, b):
        if side.kind == "generator":
            return "distributions", f"{side.where} is {side.words}"
    sizes = [side.count or 0 for side in (a, b)]
    if min(sizes) > MOST:
        return "distributions", f"both hold more than {MOST} ({sizes[0]:,} and {sizes[1]:,})"
    return "sets", _why_sets(a, b, sizes)


def _why_sets(a: Told, b: Told, sizes: list[int]) -> str:
    if max(sizes) > MOST:
        few, many = (a, b) if sizes[0] < sizes[1] else (b, a)
        return f"{few.where} is {few.words}, too few for a distribution, though {many.where} is {many.words}"
    if a.kind == b.kind == "video":
        return "both are videos"
    if a.kind == b.kind == "album":
        return f"both hold at most {MOST} pictures ({sizes[0]} and {sizes[1]})"
    if a.kind == b.kind:
        return "both are sets of features"
    return f"a is {a.words} and b {b.words}"


def check(a: Told, b: Told, level: str, options: Mapping[str, Any]) -> None:
    """An InputError where a level does not take what it is given."""
    if level not in OPTIONS:
        raise InputError(f"level: expected auto, {', '.join(OPTIONS)}, got {level!r}")
    _check_fit(level, a, b)
    for name in options:
        if name not in OPTIONS[level]:
            others = " and ".join(other for other in OPTIONS if name in OPTIONS[other])
            known = f"it is one of {others}" if others else f"it has {', '.join(OPTIONS[level])}"
            raise InputError(f"{name}: not an option of the level {level}; {known}")


def _check_fit(level: str, a: Told, b: Told) -> None:
    """Refuse what a level cannot take, naming the argument and the level that can."""
    for side in (a, b):
        if level in ("pixels", "images") and side.kind != "photo":
            raise InputError(f"{side.where}: {level} compares two single photos, got {side.words}")
        if level == "sets" and side.kind == "generator":
            raise InputError(f"{side.where}: a set is finite, got {side.words}; compare it at the level distributions")
        if level == "distributions" and side.kind in ("photo", "video"):
            raise InputError(
                f"{side.where}: {side.words} has no distribution; give a folder of pictures, features or a generator"
            )


# ── at its level ──────────────────────────────────────────────────────────────────────────────────────────────────


def _pixels(a: Told, b: Told, why: str, options: dict[str, Any]) -> Chosen:
    """The flow both ways, features found again near it, the distance of the two photos as wholes, and the verdict."""
    from likewise import images, pixels, search

    given = dict(options)
    model = given.pop("model", None)
    model = pixels.default() if model is None else model
    own = pixels.compare(a.item, b.item, model=model)
    flows = (own.flow, own.back)
    matches = pixels.match(a.item, b.item, flows=flows, flow_size=getattr(model, "work", None), **given)
    pair = search.pair(a.item, b.item)
    return Chosen(own.distance, "pixels", why, own, images.compare(a.item, b.item), matches, pair)


def _images(a: Told, b: Told, why: str, options: dict[str, Any]) -> Chosen:
    from likewise import images

    own = images.compare(a.item, b.item, **options)
    return Chosen(own.distance, "images", why, own)


def _sets(a: Told, b: Told, why: str, options: dict[str, Any]) -> Chosen:
    from likewise import sets

    given = dict(options)
    own_to_reading = ("k", "every", "seed", "describe", "on_error")
    how = _Described(**{name: given.pop(name) for name in own_to_reading if name in given})
    p, q = how.signature(a), how.signature(b)
    own = sets.compare(p, q, **given)
    return Chosen(own.distance, "sets", why, own, skipped=tuple(how.skipped))


def _distributions(a: Told, b: Told, why: str, options: dict[str, Any]) -> Chosen:
    from likewise import distributions

    given = dict(options)
    drawn = {name: given.pop(name, None) for name in ("rho", "generator", "family")}
    if drawn["rho"] is not None and not any(hasattr(side.item, "log_sigma") for side in (a, b)):
        raise InputError("rho: only a bank can be drawn with a polarity; harvest one of the generator, and give that")
    if given.get("describe") is None and all(isinstance(side.item, Path) and side.item.is_dir() for side in (a, b)):
        from likewise.images import default

        given["describe"] = default()
    sides = [_source(side, other, drawn, given) for side, other in ((a, b), (b, a))]
    own = distributions.compare(*sides, **given)
    skipped = (*own.real.skipped, *own.fake.skipped)
    return Chosen(own.distance, "distributions", why, own, skipped=skipped)


@dataclass
class _Described:
    """How things become sets: the embedder, the most centres, each which frame of a video; and what was left out."""

    k: int | None = 8
    every: int = 1
    seed: int = 0
    describe: Any = None
    on_error: str = "raise"

    def __post_init__(self) -> None:
        self.skipped: list[tuple[str, str]] = []
        if self.on_error not in ("raise", "skip"):
            raise InputError(f'on_error: expected "raise" or "skip", got {self.on_error!r}')

    def signature(self, side: Told) -> Signature:
        """A photo, an album, a video or features as a set."""
        from likewise.sets import data

        if side.kind == "features":
            return self._features(side)
        if side.kind == "video":
            return data.from_video(side.item, self._embed, self.k, every=self.every, seed=self.seed)
        files = self._files(side)
        rows, kept = self._rows(files, side)
        names = [str(files[i]) for i in kept] if all(isinstance(f, Path) for f in files) else None
        return data.signature(rows, self.k, self.seed, names=names)

    def _features(self, side: Told) -> Signature:
        from likewise.sets import data
        from likewise.sets.reading import signature_of

        if not isinstance(side.item, str | Path):
            return signature_of(side.item, where=side.where)
        file, _, which = str(side.item).rpartition("#") if isinstance(side.item, str) else (side.item, "", "")
        found = data.load_npz(file) if Path(file).suffix.lower() == ".npz" else None
        if found is None:
            from likewise.media import load_arrays

            return data.signature(load_arrays(file)["arr_0"], self.k, self.seed)
        names = [str(n) for n in (found.labels if found.labels is not None else range(len(found)))]
        if which and which not in names:
            raise InputError(f"{side.where}: {file} has no set {which!r}; it has {', '.join(names[:6])}")
        if not which and len(found) > 1:
            raise InputError(f"{side.where}: {file} holds {len(found)} sets; say which, as in {file}#{names[0]}")
        return data.signature(found.signatures[names.index(which) if which else 0].points, self.k, self.seed)

    def _files(self, side: Told) -> list[Any]:
        from likewise.media import images

        if isinstance(side.item, Path):
            return images(side.item) if side.item.is_dir() else [side.item]
        items = side.item if side.kind == "album" else [side.item]
        return [Path(x) if isinstance(x, str | os.PathLike) else x for x in items]

    def _rows(self, files: list[Any], side: Told) -> tuple[Any, list[int]]:
        """A row a picture, and which pictures could be read."""
        if self.describe is not None or self.on_error == "raise":
            return self._embed(files), list(range(len(files)))
        from likewise.images import default
        from likewise.images.embedding import embed_files

        rows, kept, skipped = embed_files(default(), files)
        self.skipped += [(str(files[s.index]), s.reason) for s in skipped]
        if not kept:
            raise FileError(f"{side.where}: no picture of it can be read; the first: {skipped[0].reason}")
        return rows, kept

    def _embed(self, pictures: Sequence[Any]) -> Any:
        from likewise.images import default

        embedder: Any = default() if self.describe is None else self.describe
        return embedder.embed(pictures) if hasattr(embedder, "embed") else embedder(pictures)


def _source(side: Told, other: Told, drawn: dict[str, Any], given: dict[str, Any]) -> Any:
    """What the level distributions reads: a generator by its name is loaded, a bank is drawn from."""
    if side.kind != "generator":
        return side.item
    if hasattr(side.item, "log_sigma"):
        return _from_bank(side, other, drawn, given)
    from likewise.distributions.data import load_generator

    return load_generator(side.item, family=drawn["family"]) if isinstance(side.item, str) else side.item


def _from_bank(side: Told, other: Told, drawn: dict[str, Any], given: dict[str, Any]) -> Any:
    """Pictures of a bank's generator at latents that are drawn from the bank, as many as the other side has."""
    import torch

    bank = side.item
    generator = _generator_of(side, drawn)
    n = given.get("n") or other.count or len(bank)
    found = bank.draw(n, 0.0 if drawn["rho"] is None else drawn["rho"], seed=given.get("seed", 0))
    parts = [slice(i, i + 64) for i in range(0, n, 64)]
    if found.labels is None:
        return torch.cat([generator(found.latents[part]) for part in parts])
    return torch.cat([generator(found.latents[part], found.labels[part]) for part in parts])


def _generator_of(side: Told, drawn: dict[str, Any]) -> Any:
    """The generator of a bank: the one that is given, or the shipped one whose name the bank bears."""
    from likewise.distributions.data import load_generator
    from likewise.distributions.shipped import GENERATORS
    from likewise.distributions.spaces import NAMES

    about, named = side.item.about, drawn["generator"]
    if named is None:
        named = about.name.removeprefix("likewise-")
        if named not in GENERATORS:
            raise InputError(f"generator: {side.where} is a bank of {about.name}; give the generator that it came from")
    found = load_generator(named, family=drawn["family"]) if isinstance(named, str | Path) else named
    if about.space in NAMES:
        side.item.check(found.in_space(about.space))
    return found
