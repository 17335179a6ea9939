"""Copies planted among real photos, and how `likewise search --duplicates` and a perceptual hash group them.

copies: 13 kinds of copies, each of another photo, are laid among photos of $LIKEWISE_DATA (places, birds, oxford,
lund), and each method groups the folder. A copy is found if one group holds it and its source. Photos show different
scenes where they are of other collections, cameras, kinds of birds, or of numbers along a way as far apart as
`life.places.APART` says; a group of such is false. A group of several photos of one scene that nobody planted (a webcam
months apart, neighbours on a railway, two photos of a kind of bird) is neither right nor wrong, and counted apart.
growth: CPU-seconds and memory of grouping ever more photos, whose stored features are mixed from those of real ones.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from likewise import media
from likewise.errors import InputError
from likewise.papers import Record, data_folder, kept, read_text, slug
from likewise.papers.life.places import APART, SHIFTED
from likewise.search.collection import Collection
from likewise.search.local import Local
from likewise.store import index as store
from likewise.train.options import option

Edit: TypeAlias = Callable[[Image.Image, np.random.Generator, int], Image.Image]
Groups: TypeAlias = list[list[str]]

PHOTOS = (*(f"places/{name}/*/*.jpg" for name in APART), "oxford/*/*.jpg", "lund/*.jpg", "cub200-232/*/*")
"""Where the real photos are; cub200 has those of cub200-232 once more, eth80 hundreds of views of a few toys."""
TWINS = {82: 34, 142: 78}
"""Webcams that look where another of the collection looks, told by eye; there may be others."""
CAPTION = "© City archive 2019"
"""The same words on each captioned copy: what they share must not join them."""
BASE, BATCH, EVERY = 400, 512, 20
"""growth: real photos that others are mixed from, how many are put at a time, and that each 20th is a copy."""


@dataclass(frozen=True)
class Options:
    """What the tables of copies are made of."""

    data: str = option("", "folder of real data; default: $LIKEWISE_DATA")
    photos: int = option(2400, "copies: real photos", low=1)
    each: int = option(12, "copies: planted copies of each kind", low=1)
    seed: int = option(0, "what photos, sources and copies depend on", low=0)
    methods: str = option("ours,phash", "copies: of ours, phash, phash10 (radius 10), phash-turned (8 orientations)")
    cells: str = option("", "folder where planted photos, and rows of growth, are kept: a run resumes")
    sizes: str = option("1000,3000,10000", "growth: numbers of photos")


# -------------------------------------------------------------------------------------------------------------- photos


def gather(data: Path, n: int, *, seed: int = 0) -> list[str]:
    """The names below the data's folder of n real photos: from each collection in turn as long as it has some left."""
    rng = np.random.default_rng(seed)
    found = [[f.relative_to(data).as_posix() for f in sorted(data.glob(p)) if f.is_file()] for p in PHOTOS]
    drawn = [[names[i] for i in rng.permutation(len(names))] for names in found]
    return sorted(islice((name for turn in zip_longest(*drawn) for name in turn if name is not None), n))


def scenes(data: Path, names: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Of each photo where it was taken: a place's name, and how far along it, 1 apart being out of each other's sight.

    Queries of kudamm have numbers of their own, which truth.csv says the references of; a few webcams are `TWINS`.
    """
    truth = data / "places/kudamm/truth.csv"
    lines = read_text(truth).split()[1:] if truth.is_file() else []
    along = {
        f"places/kudamm/query/{int(query) - SHIFTED:03d}.jpg": int(at)
        for query, at in (line.split(",") for line in lines)
    }
    along |= {f"places/webcams/{side}/{n:03d}.jpg": at for n, at in TWINS.items() for side in ("query", "reference")}
    where = {name: (os.path.dirname(name), 0.0) for name in names}
    for name in (name for name in where if name.startswith("places/")):
        _, collection, _, file = name.split("/")
        where[name] = collection, along.get(name, int(file.partition(".")[0])) / APART[collection]
    return where


# -------------------------------------------------------------------------------------------------------------- copies


def _resize(im: Image.Image, side: int) -> Image.Image:
    return im.resize([max(1, round(side * n / max(im.size))) for n in im.size], Image.Resampling.LANCZOS)


def _relight(im: Image.Image, rng: np.random.Generator, i: int) -> Image.Image:
    """A gain above 1, one below, and a gamma below 1, one above, in turn."""
    value, x = rng.uniform(*((1.2, 1.6), (0.5, 0.8), (0.5, 0.75), (1.4, 2.0))[i % 4]), np.arange(256) / 255
    curve = np.clip(255 * (value * x if i % 4 < 2 else x**value), 0, 255).round().astype(int)
    return im.point(curve.tolist() * 3)


def _caption(im: Image.Image, rng: np.random.Generator, i: int) -> Image.Image:
    """White words in a lower and an upper corner, black ones in a white bar over the lower edge, white in one below."""
    (w, h), style = im.size, i % 4
    high = round(rng.uniform(0.10, 0.16) * h)
    out = ImageOps.expand(im, (0, 0, 0, high if style == 3 else 0), "black")
    pen, face = ImageDraw.Draw(out), os.path.join(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")
    if style == 2:
        pen.rectangle((0, h - high, w, h), fill="white")
    size = min(0.7 * high, 70 * 0.95 * w / ImageFont.truetype(face, 70).getlength(CAPTION))  # not wider than the photo
    at = 0.02 * w, 0.1 * high if style == 1 else out.height - 0.9 * high
    pen.text(at, CAPTION, fill="black" if style == 2 else "white", font=ImageFont.truetype(face, size))
    return out


def _crop(im: Image.Image, rng: np.random.Generator, share: float) -> Image.Image:
    w, h = (round(share * n) for n in im.size)
    x, y = int(rng.integers(im.width - w + 1)), int(rng.integers(im.height - h + 1))
    return im.crop((x, y, x + w, y + h))


def _turn(im: Image.Image, rng: np.random.Generator, i: int) -> Image.Image:
    """By 5° either way: whole with filled corners, and in turn the largest part of the same shape without them."""
    angle, (w, h) = (5, -5)[rng.integers(2)], im.size
    if i % 2 == 0:
        fill = ("black", "white", "grey")[i // 2 % 3]
        return im.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor=fill)
    c, s = math.cos(math.radians(5)), math.sin(math.radians(5))
    off = (1 - min(w / (w * c + h * s), h / (w * s + h * c))) / 2
    box = math.ceil(off * w) + 1, math.ceil(off * h) + 1, math.floor(w - off * w) - 1, math.floor(h - off * h) - 1
    return im.rotate(angle, Image.Resampling.BICUBIC).crop(box)


def _border(im: Image.Image, rng: np.random.Generator, i: int) -> Image.Image:
    colour = ("#fff", "#000", "#{:02x}{:02x}{:02x}".format(*rng.integers(256, size=3)))[i % 3]
    return ImageOps.expand(im, round(rng.uniform(0.05, 0.15) * max(im.size)), colour)


KINDS: dict[str, Edit] = {
    "exact": lambda im, rng, i: im,
    "recompressed": lambda im, rng, i: im,
    "resized": lambda im, rng, i: _resize(im, min(320, 2 * max(im.size) // 3)),  # some birds have 300 px and less
    "160 px and below": lambda im, rng, i: _resize(im, (160, 128, 96)[i % 3]),
    "grey": lambda im, rng, i: im.convert("L").convert("RGB"),
    "brightened": _relight,
    "captioned": _caption,
    "crop 80 %": lambda im, rng, i: _crop(im, rng, 0.8),
    "crop 60 %": lambda im, rng, i: _crop(im, rng, 0.6),
    "turned 5°": _turn,
    "turned 90°": lambda im, rng, i: im.transpose(Image.Transpose(2 + i % 3)),  # 90, 180, 270
    "mirrored": lambda im, rng, i: im.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "bordered": _border,
}
"""What makes the i-th copy of each kind. A crop keeps that share of each side: 64 and 36 % of the picture."""


def plant(data: Path, folder: Path, n: int, each: int, *, seed: int = 0) -> dict[str, Any]:
    """Lay n real photos and copies of some into a folder; every copy has a source of its own.

    An exact copy is one of bytes; one that is recompressed has JPEG's quality 30 to 60, all others 85 to 95.

    Parameters
    ----------
    data : path
        The folder of real data.
    folder : path
        Where they are laid: photos under their names below `data`, copies under copies/KIND/.
    n, each : int
        Real photos, and copies of each kind.
    seed : int
        What all of it depends on.

    Returns
    -------
    dict
        "photos": name → scene (`scenes`); "copies": name → kind and source. Plain values for JSON.

    Raises
    ------
    InputError
        Where there are fewer photos than copies to make.
    """
    names = gather(data, n, seed=seed)
    if len(names) < len(KINDS) * each:
        raise InputError(f"photos: expected at least {len(KINDS) * each} below {data}, got {len(names)}")
    for name in names:
        _lay(data / name, folder / name)
    sources = np.random.default_rng([seed, 1]).choice(names, len(KINDS) * each, replace=False).tolist()
    copies: dict[str, dict[str, str]] = {}
    for (number, i), source in zip(np.ndindex(len(KINDS), each), sources, strict=True):
        kind, rng = list(KINDS)[number], np.random.default_rng([seed, 2, number, i])
        name = f"copies/{slug(kind)}/{i:02d}{Path(source).suffix if kind == 'exact' else '.jpg'}"
        copies[name] = {"kind": kind, "source": source}
        _lay(data / source, folder / name)
        if kind != "exact":
            quality = int(rng.integers(30, 61) if kind == "recompressed" else rng.integers(85, 96))
            copy = KINDS[kind](Image.fromarray(media.read_array(data / source)), rng, i)
            media.write_image(folder / name, np.asarray(copy), quality=quality)
    return {"photos": {name: list(where) for name, where in scenes(data, names).items()}, "copies": copies}


def _lay(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def score(groups: Iterable[Iterable[str]], truth: Mapping[str, Any]) -> dict[str, Any]:
    """How many copies of each kind are found, and what else the groups are.

    Parameters
    ----------
    groups : iterable of groups of names
        What a method joined.
    truth : mapping
        What `plant` gave.

    Returns
    -------
    dict
        A kind → copies that are in a group with their source; "found" in all; "groups"; "false groups" with photos of
        different scenes; "same scene" groups with several photos of one, not planted; "chains" of three and more that
        are not all of one source; the "largest group"; and by name "missed", "joined wrongly" (false groups) and "not
        planted" (of the same scene).

    Examples
    --------
    >>> photos = {"a.jpg": ("lund", 0.0), "b.jpg": ("oxford/v_wall", 0.0)}
    >>> copies = {"c.jpg": {"kind": "grey", "source": "a.jpg"}, "d.jpg": {"kind": "exact", "source": "b.jpg"}}
    >>> row = score([["a.jpg", "b.jpg", "c.jpg"]], {"photos": photos, "copies": copies})
    >>> row["grey"], row["found"], row["false groups"], row["chains"], row["missed"]
    (1, 1, 1, 1, ['d.jpg'])
    """
    photos, copies = truth["photos"], truth["copies"]
    source = {name: name for name in photos} | {name: copy["source"] for name, copy in copies.items()}
    listed = [set(group) for group in groups]
    of_several = [group for group in listed if len({source[name] for name in group}) > 1]
    false = [group for group in of_several if _differ(photos[source[name]] for name in group)]
    joined = {name for group in listed for name in group if source[name] in group}
    return {
        **{kind: sum(c["kind"] == kind and name in joined for name, c in copies.items()) for kind in KINDS},
        "found": sum(name in joined for name in copies),
        "of": len(copies),
        "groups": len(listed),
        "false groups": len(false),
        "same scene": len(of_several) - len(false),
        "chains": sum(len(group) > 2 for group in of_several),
        "largest group": max(map(len, listed), default=0),
        "missed": [name for name in copies if name not in joined],
        "joined wrongly": [sorted(group) for group in false],
        "not planted": [sorted(group) for group in of_several if group not in false],
    }


def _differ(where: Iterable[Sequence[Any]]) -> bool:
    """Whether not all scenes are of one place, less than 1 apart."""
    keys, numbers = zip(*where, strict=True)
    return len(set(keys)) > 1 or max(numbers) - min(numbers) >= 1


# ------------------------------------------------------------------------------------------------------------- methods


def phash(image: NDArray[np.uint8], *, turned: bool = False) -> NDArray[np.bool_]:
    """The classic 64 bits of an image: which of the 8 × 8 lowest frequencies of 32 × 32 pixels exceed their median.

    Parameters
    ----------
    image : array (h, w, 3)
        RGB.
    turned : bool
        Those of its four quarter turns and of their mirrors, too.

    Returns
    -------
    array (1 or 8, 64)
        The first row is of the image as it is.

    Examples
    --------
    >>> import numpy as np
    >>> ramp = np.repeat(np.arange(64, dtype=np.uint8)[:, None, None], 64, 1).repeat(3, 2)
    >>> phash(ramp).shape, bool((phash(ramp, turned=True)[1] == phash(np.rot90(ramp).copy())[0]).all())
    ((1, 64), True)
    """
    grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (32, 32), interpolation=cv2.INTER_AREA)
    views = [np.rot90(side, k) for side in (grey, grey[:, ::-1]) for k in range(4)] if turned else [grey]
    low = np.array([cv2.dct(view.astype(np.float32))[:8, :8].ravel() for view in views])
    return np.asarray(low > np.median(low, axis=1, keepdims=True))


def hashed_groups(bits: NDArray[np.bool_], radius: int) -> list[list[int]]:
    """Groups of rows (n, t, 64): i and j are joined, over others too, where one of i's t hashes is near j's first."""
    signs = np.where(bits, 1, -1).astype(np.float32)
    near = [
        (np.einsum("ntb,mb->tnm", some, signs[:, 0], optimize=True) >= 64 - 2 * radius).any(0)
        for some in np.array_split(signs, len(signs) // BATCH + 1)
    ]
    labels = connected_components(coo_array(np.concatenate(near)), directed=False)[1]
    return [np.flatnonzero(labels == k).tolist() for k in np.flatnonzero(np.bincount(labels) > 1)]


def _by_hash(folder: Path, names: Sequence[str], radius: int, turned: bool = False) -> tuple[Groups, float, float]:
    began = _seconds()
    bits = np.array([phash(media.read_array(folder / name), turned=turned) for name in names])
    hashed = _seconds()
    groups = [[names[i] for i in group] for group in hashed_groups(bits, radius)]
    return groups, hashed - began, _seconds() - hashed


def _by_likewise(folder: Path, names: Sequence[str]) -> tuple[Groups, float, float]:
    with tempfile.TemporaryDirectory() as place:
        began = _seconds()
        Collection.build(folder, place).close()
        index = _seconds() - began
        groups, grouping, _ = _grouped(Path(place))
        return groups, index, grouping


def _seconds() -> float:
    """CPU-seconds of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


METHODS: dict[str, tuple[str, Callable[[Path, Sequence[str]], tuple[Groups, float, float]]]] = {
    "ours": ("likewise", _by_likewise),
    "phash": ("pHash, radius 8", partial(_by_hash, radius=8)),
    "phash10": ("pHash, radius 10", partial(_by_hash, radius=10)),
    "phash-turned": ("pHash in 8 orientations, radius 8", partial(_by_hash, radius=8, turned=True)),
}


# -------------------------------------------------------------------------------------------------------------- tables


def planted_copies(options: Options) -> Record:
    """A row a method: copies found of each kind, wrong groups, CPU-seconds."""
    data, methods = data_folder(options.data), options.methods.split(",")
    if not set(methods) <= set(METHODS):
        raise InputError(f"methods: expected of {', '.join(METHODS)}, with commas between, got {options.methods!r}")
    with tempfile.TemporaryDirectory() as spare:
        root = Path(options.cells or spare, f"planted-{options.photos}-{options.each}-{options.seed}")
        make = partial(plant, data, root / "photos", options.photos, options.each, seed=options.seed)
        truth, rows = kept(root / "truth.json", make), []
        for title, method in (METHODS[word] for word in methods):
            groups, index, grouping = method(root / "photos", [*truth["photos"], *truth["copies"]])
            row = {"method": title, **score(groups, truth), "photos": len(truth["photos"])}
            rows.append(row | {"CPU-s index": index, "CPU-s grouping": grouping})
    columns = [name for name in rows[0] if not isinstance(rows[0][name], list)]
    note = """false groups: of different scenes; same scene: photos of one place, not planted, neither right nor wrong;
    chains: three and more, not all of one source. Crops: that share of each side. pHash joins over others, as usual"""
    return Record(columns, rows, " ".join(note.split()))


def grow(collection: Collection, n: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Fill an index with photos that nobody took until it holds n, and give the pairs of copies among them.

    Each is made of two that are there: its vector and its thumbnail lie between theirs, with noise; its features are
    those of a third, moved by a tenth of the sides, so that two with the same are no copies. Every 20th is a copy of
    the 19th; files, saved from the thumbnail, are made of these two alone, as no others are ever looked at.
    """
    index: Any = collection.index
    names, rng = sorted(index.names()), np.random.default_rng(seed)
    vectors, features = index.vectors(names), index.features(names)
    rows, photos = np.stack([vectors[n] for n in names]), [Local.from_bytes(features[n]) for n in names]
    thumbs = np.stack([photo.thumb for photo in photos])
    noise, copies = 0.3 / math.sqrt(rows.shape[1]), list[tuple[str, str]]()
    for start in range(len(names), n, BATCH):
        m = min(BATCH, n - start)
        one = rng.integers(len(names), size=m)
        two = (one + rng.integers(1, len(names), size=m)) % len(names)
        share = rng.uniform(0.4, 0.5, (m, 1))
        mixed = (1 - share) * rows[one] + share * rows[two] + rng.normal(0, noise, (m, rows.shape[1]))
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
        grey = (
            (1 - share[..., None]) * thumbs[one]
            + share[..., None] * thumbs[two]
            + rng.normal(0, 2, (m, *thumbs.shape[1:]))
        )
        third = rng.integers(len(names), size=m)
        pieces = [_moved(photos[k], thumb, rng).to_bytes() for k, thumb in zip(third, grey, strict=True)]
        last = np.arange(EVERY - 1, m, EVERY)
        mixed[last] = mixed[last - 1]
        for i in last:
            pieces[i] = pieces[i - 1]
        made = [f"made/{start + i:07d}.jpg" for i in range(m)]
        copies += [(made[i - 1], made[i]) for i in last]
        for i in last:
            shown = cv2.resize(np.clip(grey[i - 1], 0, 255).astype(np.uint8), (160, 120), interpolation=cv2.INTER_CUBIC)
            for name, quality in ((made[i - 1], 90), (made[i], 60)):
                media.write_image(collection.path_of(name), np.dstack([shown] * 3), quality=quality)
        index.put([store.Record(name, 1, 1) for name in made], mixed.astype(np.float32), pieces)
    index.settle()
    return copies


def _moved(photo: Local, thumb: NDArray[np.float64], rng: np.random.Generator) -> Local:
    """Its features, each moved by a tenth of the sides, under another thumbnail."""
    most = np.array(photo.size[::-1]) - 1
    points = np.clip(photo.points + rng.normal(0, 0.1, photo.points.shape) * most, 0, most).astype(np.float32)
    return replace(photo, points=points, thumb=np.clip(thumb, 0, 255).round().astype(np.uint8))


def growth(options: Options, fill: Callable[..., list[tuple[str, str]]] = grow) -> Record:
    """A row a size: CPU-seconds and peak memory of grouping, each in a process of its own, and the exponent between."""
    sizes = sorted(int(word) for word in options.sizes.split(",") if word.isdecimal())
    if len(sizes) <= options.sizes.count(",") or sizes[0] < 2:
        raise InputError(f"sizes: expected whole numbers > 1 with commas between, got {options.sizes!r}")
    data, rows = data_folder(options.data), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as home:
        folder, base = Path(home, "photos"), Path(home, "base")
        for name in gather(data, min(BASE, sizes[0]), seed=options.seed):
            _lay(data / name, folder / name)
        Collection.build(folder, base).close()
        for n in sizes:
            file = Path(options.cells, f"growth-{n}-{options.seed}.json") if options.cells else None
            rows.append(kept(file, partial(_grown, Path(home), n, partial(fill, seed=options.seed))))
    for a, b in pairwise(rows):
        b["exponent"] = math.log(b["CPU-s"] / a["CPU-s"]) / math.log(b["photos"] / a["photos"])
    columns = ["photos", "CPU-s", "exponent", "CPU-ms a photo", "peak MB", "index MB", "groups", "copies", "found"]
    note = f"features mixed from those of {BASE} real photos, each {EVERY}th a copy; exponent: of time, from row to row"
    return Record([c for c in columns if any(c in row for row in rows)], rows, note)


def _grown(home: Path, n: int, fill: Callable[..., list[tuple[str, str]]]) -> dict[str, Any]:
    """The row of n photos."""
    place = shutil.copytree(home / "base", home / f"index-{n}")
    with Collection.open(place) as collection:
        copies = fill(collection, n)
    stored = sum(f.stat().st_size for f in place.iterdir())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        groups, seconds, peak = pool.submit(_grouped, place).result()
    at = {name: i for i, group in enumerate(groups) for name in group}
    found = sum(a in at and at[a] == at.get(b) for a, b in copies)
    row = {"photos": n, "CPU-s": seconds, "CPU-ms a photo": 1e3 * seconds / n, "index MB": stored / 1e6}
    row |= {"groups": len(groups), "copies": len(copies), "found": found}
    shutil.rmtree(place)
    return row if peak is None else row | {"peak MB": peak}


def _grouped(place: Path) -> tuple[Groups, float, float | None]:
    """The groups of an index by names, CPU-seconds, and this process's largest resident size in MB where it is told."""
    began = _seconds()
    with Collection.open(place) as collection:
        groups = [[collection.name_of(path) for path in group] for group in collection.duplicates()]
    seconds, status = _seconds() - began, Path("/proc/self/status")
    lines = read_text(status).splitlines() if status.is_file() else []
    return groups, seconds, next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), None)
