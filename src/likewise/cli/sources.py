"""What a path on the command line stands for: a set (folder, video, picture, .npz) or a collection of sets.

A picture that cannot be read is named, counted and left out; a set of which nothing is left, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import media
from likewise.cli.terminal import tell_left_out, warn
from likewise.errors import FileError, InputError, LikewiseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.types import Array, Signature

FEATURES = ("embed", "pixels", "lbp")
"""embed: 1280 numbers of a network; pixels: the picture, grey, 20 × 20; lbp: 8 × 8 histograms of local patterns."""

BATCH = 64


@dataclass(frozen=True, eq=False)
class NamedSets:
    """Signatures with their names and, where the source has classes, their labels."""

    signatures: list[Signature]
    names: list[str]
    labels: NDArray[Any] | None = None
    described: bool = True
    """Whether pictures were described; False for numbers out of a file."""

    def __len__(self) -> int:
        return len(self.signatures)


@dataclass
class Reader:
    """Turns paths into signatures: how pictures are described, how many centres, each which frame of a video."""

    features: str = "embed"
    k: int | None = 8
    every: int = 1
    seed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def one(self, path: str | Path) -> Signature:
        """The set at a path: a folder of pictures, a video, a picture, or an .npz (file.npz#name for one of many)."""
        text = str(path)
        file, _, which = text.rpartition("#") if "#" in text and not Path(text).exists() else (text, "", "")
        place = Path(file)
        if not place.exists():
            raise FileError(f"{place}: no such file or folder")
        if place.is_file() and _is_arrays(place):
            return self._one_of(place, which)
        found = self.item(place)
        if found is None:
            raise FileError(f"{place}: no picture in it can be read{self._why(place)}")
        return found

    def many(self, path: str | Path) -> NamedSets:
        """The sets at a path: class/object/pictures, object/pictures, class/videos, or an .npz of many sets."""
        from likewise.sets import data

        place = Path(path)
        if not place.exists():
            raise FileError(f"{place}: no such file or folder")
        if place.is_file():
            return self._stored(place)
        found = data.collection(place)
        _tell_passed_over(place, found)
        return self._read(found.items, found.labels, place)

    def item(self, path: Path, level: Any = None) -> Signature | None:
        """The signature of a folder of pictures, a video or one picture; None where nothing in it can be read."""
        from likewise.media import is_image

        if path.is_dir():
            return self._pictures(self._files(path), level)
        if is_image(path):
            return self._pictures([path], level)
        return self._video(path, level)

    def pictures(self, paths: Sequence[Path]) -> Signature | None:
        """The signature of some picture files."""
        return self._pictures(list(paths), None)

    def tell(self) -> None:
        """Say on stderr what was left out."""
        tell_left_out(self.skipped)

    def left_out(self) -> list[dict[str, str]]:
        """What was left out, for a JSON file."""
        return [{"name": name, "reason": reason} for name, reason in self.skipped]

    # ── collections ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, items: Sequence[Path], labels: Sequence[str] | None, root: Path) -> NamedSets:
        import numpy as np

        from likewise.store.run import progress

        kept: list[tuple[int, Signature]] = []
        with progress(len(items), "reading sets") as advance:
            for i, item in enumerate(items):
                found = self._item_or_none(item)
                if found is not None:
                    kept.append((i, found))
                advance()
        if not kept:
            raise FileError(f"{root}: no picture in its {len(items)} sets can be read{self._why(root)}")
        names = [str(items[i].relative_to(root)) for i, _ in kept]
        return NamedSets(
            [s for _, s in kept], names, None if labels is None else np.asarray([labels[i] for i, _ in kept])
        )

    def _item_or_none(self, item: Path) -> Signature | None:
        """A set, or None; a video that cannot be decoded counts as unreadable."""
        try:
            return self.item(item)
        except FileError as error:
            self.skipped.append((str(item), str(error)))
            return None

    def _stored(self, path: Path) -> NamedSets:
        from likewise.sets import data

        stacked = "offsets" in media.load_arrays(path)
        sets = data.load_npz(path)
        names = [str(n) for n in (range(len(sets)) if stacked or sets.labels is None else sets.labels)]
        made = [s if stacked else data.signature(s.points, self.k, self.seed) for s in sets.signatures]
        return NamedSets(made, names, sets.labels if stacked else None, described=False)

    def _one_of(self, path: Path, which: str) -> Signature:
        from likewise.types import Signature

        arrays = media.load_arrays(path)
        if set(arrays) == {"points", "weights"}:
            return Signature(arrays["points"], arrays["weights"], where=str(path))
        sets = self._stored(path)
        if which:
            if which not in sets.names:
                raise InputError(f"{path}: no set {which!r} in it; it has {_some(sets.names)}")
            return sets.signatures[sets.names.index(which)]
        if len(sets) > 1:
            raise InputError(f"{path}: holds {len(sets)} sets; say which, as in {path}#{sets.names[0]}")
        return sets.signatures[0]

    # ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _files(self, folder: Path) -> list[Path]:
        """The pictures of a folder; files that are only named like pictures are noted as unreadable."""
        from likewise.media import images

        found = images(folder)
        known = set(found)
        for p in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in p.relative_to(folder).parts)
            if p.suffix.lower() in media.PICTURE_NAMES and p.is_file() and p not in known and not hidden:
                self.skipped.append((str(p), "empty, or not a picture"))
        return found

    def _pictures(self, paths: list[Path], level: Any) -> Signature | None:
        from likewise.sets import data

        if not paths:
            return None
        rows, kept = self._describe(paths, [str(p) for p in paths])
        return data.signature(rows, self.k, self.seed, names=kept, level=level) if kept else None

    def _video(self, path: Path, level: Any) -> Signature:
        import numpy as np

        from likewise.media import frames
        from likewise.sets import data

        stream = iter(frames(path, every=self.every))
        rows: list[Array] = []
        names: list[str] = []
        while batch := list(islice(stream, BATCH)):
            numbers = range(len(names) * self.every, (len(names) + len(batch)) * self.every, self.every)
            found, kept = self._describe(batch, [f"{path}#{n}" for n in numbers])
            rows.append(found)
            names += kept
        return data.signature(np.concatenate(rows), self.k, self.seed, names=names, level=level)

    def _describe(self, pictures: list[Any], names: list[str]) -> tuple[Array, list[str]]:
        """A row a readable picture, and the names of those."""
        import numpy as np

        if self.features == "embed":
            return self._embed(pictures, names)
        feature = _feature(self.features)
        rows, kept = [], []
        for picture, name in zip(pictures, names, strict=True):
            try:
                rows.append(feature(picture).ravel())
                kept.append(name)
            except LikewiseError as error:
                self.skipped.append((name, str(error)))
        return np.asarray(rows, dtype=np.float64), kept

    def _embed(self, pictures: list[Any], names: list[str]) -> tuple[Array, list[str]]:
        import numpy as np

        from likewise.images import default

        model = default()
        rows = np.asarray(model.embed(pictures, on_error="skip"), dtype=np.float64)
        bad = {s.index: s.reason for s in model.skipped}
        self.skipped += [(names[i], reason) for i, reason in sorted(bad.items())]
        return rows, [name for i, name in enumerate(names) if i not in bad]

    def _why(self, place: Path) -> str:
        """The first reason, for a message."""
        own = [(n, r) for n, r in self.skipped if n.startswith(str(place))]
        return f" (of {len(own)}; the first: {own[0][1]})" if own else "; there is none"


def _feature(name: str) -> Callable[[Any], NDArray[np.float64]]:
    from likewise.sets import features

    if name == "pixels":
        return features.grey_pixels
    if name == "lbp":
        return lambda picture: features.block_lbp(picture, root=True)
    raise InputError(f"features: expected one of {', '.join(FEATURES)}, got {name!r}")


def thumbnails(s: Signature) -> list[Any] | None:
    """The picture of each point: a file, or a frame of a video; None where the points stand for nothing on disk."""
    from likewise.media import is_image

    if s.names is None:
        return None
    wanted: dict[str, list[tuple[int, int]]] = {}
    found: list[Any] = [None] * len(s)
    for i, name in enumerate(s.names):
        video, mark, number = name.rpartition("#")
        if mark and number.isdecimal() and Path(video).is_file() and not Path(name).exists():
            wanted.setdefault(video, []).append((i, int(number)))
        elif is_image(name):
            found[i] = name
    for video, places in wanted.items():
        for i, frame in _frames(video, places):
            found[i] = frame
    return found if any(f is not None for f in found) else None


def _frames(video: str, places: list[tuple[int, int]]) -> Iterator[tuple[int, Any]]:
    """The frames of some numbers, each with the point that it belongs to."""
    from likewise.media import frames

    by_number: dict[int, list[int]] = {}
    for i, number in places:
        by_number.setdefault(number, []).append(i)
    for number, frame in enumerate(frames(video, most=max(by_number) + 1)):
        for i in by_number.get(number, ()):
            yield i, frame


def _is_arrays(path: Path) -> bool:
    with path.open("rb") as stream:
        head = stream.read(6)
    return head == b"\x93NUMPY" or head.startswith(b"PK") or path.suffix.lower() in (".npz", ".npy")


def _tell_passed_over(root: Path, found: Any) -> None:
    """Class folders of which nothing was taken, because they hold pictures where sets were expected."""
    from likewise.media import is_image
    from likewise.sets.layouts import children

    if found.labels is None:
        return
    for child in children(root):
        if (
            child.is_dir()
            and child.name not in found.labels
            and any(is_image(p) for p in children(child) if p.is_file())
        ):
            warn(f"{child}: passed over, it holds pictures but no sets; expected {child.name}/object/pictures")


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
