"""Pairs out of a COLMAP model: cameras, poses and the points that two pictures share, from text or binary files."""

from __future__ import annotations

import io
import math
import os
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from likewise.errors import FileError, InputError
from likewise.media import MOST_ARRAY_BYTES, is_text
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.geometry import fundamental

_MARK = object()


def object_arrays(
    path: str | os.PathLike[str], names: Iterable[str] | None = None, *, most_bytes: int = MOST_ARRAY_BYTES
) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, those of objects, too; with `names` only these, as far as it has them."""
    wanted = None if names is None else set(names)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            chosen = {k: m for k, m in members.items() if wanted is None or k in wanted}
            total = sum(m.file_size for m in chosen.values())
            if total > most_bytes:
                raise FileError(f"{path}: declares {total:,} bytes, more than {most_bytes:,} allowed")
            return {k: _array(archive.read(m), m.file_size) for k, m in chosen.items()}
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except FileError:
        raise
    except Exception as error:  # a damaged archive or a hostile pickle can lead anywhere
        raise FileError(f"{path}: cannot be read as plain arrays: {error or type(error).__name__}") from None


def _array(data: bytes, size: int) -> NDArray[Any]:
    """One member: its header, then the numbers themselves, or the instructions that make objects."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        found = rebuilt(stream.read())
        if not isinstance(found, np.ndarray):  # NumPy pickles the array itself
            raise ValueError(f"a {type(found).__name__} where an array was expected")
        return found
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"shape {shape} in {size:,} bytes")
    flat = _checked(np.frombuffer(stream.read(), dtype=dtype, count=math.prod(shape)))
    return flat.reshape(shape, order="F" if fortran else "C")


def rebuilt(pickled: bytes) -> Any:
    """The plain data that a pickle describes; a ValueError where it describes anything else."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(pickled):
        machine.follow(opcode.name, argument)
    if len(machine.stack) != 1:
        raise ValueError("a pickle that leaves nothing, or too much")
    return _settled(machine.stack[0])


# -------------------------------------------------------------------------------------------- what stands for NumPy's


class _Name:
    """A name that unpickling would look up and call; here it only stands for itself."""

    def __init__(self, module: str, name: str) -> None:
        self.key = f"{module.replace('numpy._core', 'numpy.core')}.{name}"


class _Dtype:
    """A dtype: letter and size, such as f8 or O8, and its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.order = str(code), "<"

    def build(self, state: Any) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "|"

    def finished(self) -> np.dtype[Any] | None:
        """The dtype, or None for objects."""
        if self.code[:1] == "O":
            return None
        if self.code[:1] not in tuple("biufSU") or not self.code[1:].isdecimal():
            raise ValueError(f"an array of type {self.code!r}")
        return np.dtype(self.order + self.code)


class _Array:
    """An array that gets its shape and content later."""

    value: NDArray[Any] | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        known = dtype.finished()
        if known is None:
            flat = np.empty(len(content), dtype=object)
            for i, item in enumerate(content):
                flat[i] = item
        else:
            flat = _checked(np.frombuffer(_bytes(content), dtype=known))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _checked(flat: NDArray[Any]) -> NDArray[Any]:
    """The same array, unless it is to be text and is none."""
    if flat.dtype.names is not None or not is_text(flat):
        raise ValueError("records, or text that is not Unicode")
    return flat


def _bytes(content: Any) -> bytes:
    return content.encode("latin1") if isinstance(content, str) else bytes(content)


def _settled(item: Any) -> Any:
    """An array for what stands for it; a name or an array without content is no data."""
    if isinstance(item, _Array):
        item = item.value
    if item is None or not isinstance(item, _Name | _Dtype):
        return item
    raise ValueError(f"{getattr(item, 'key', 'a dtype')} where data was expected")


def _scalar(dtype: _Dtype, content: Any = b"") -> Any:
    known = dtype.finished()
    if known is None:
        raise ValueError("a scalar object")
    return _checked(np.frombuffer(_bytes(content), dtype=known))[0]


_MADE: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: _Array(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.dtype": lambda code, *_: _Dtype(code),
    "_codecs.encode": lambda text, *_: str(text).encode("latin1"),
    "__builtin__.bytes": lambda: b"",
}
"""What is made where a pickle would call these names; there are no others."""


# --------------------------------------------------------------------------------------------------- the instructions

_NUMBERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_VALUES = _NUMBERS | _STRINGS
_FIXED: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})


class _Machine:
    """The stack and the memo of a pickle, and what each instruction does to them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        """Do what one instruction says, or refuse."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _FIXED:
            self.stack.append(_FIXED[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name not in _NOTHING:
            if name not in _STEPS:
                raise ValueError(f"the instruction {name}, which plain data does not need")
            _STEPS[name](self, argument)

    def _marked(self) -> list[Any]:
        """What lies above the last mark, which goes with it."""
        place = next((i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK), None)
        if place is None:
            raise ValueError("an instruction without its mark")
        above = self.stack[place + 1 :]
        del self.stack[place:]
        return above

    def _popped(self, n: int) -> list[Any]:
        if len(self.stack) < n:
            raise ValueError("an instruction that finds nothing to work on")
        taken = self.stack[-n:]
        del self.stack[-n:]
        return taken

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._marked())))

    def _tuple1(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(1))))

    def _tuple2(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(2))))

    def _tuple3(self, _: Any) -> None:
        self.stack.append(tuple(map(_kept, self._popped(3))))

    def _append(self, _: Any) -> None:
        (item,) = self._popped(1)
        self._list().append(_settled(item))

    def _appends(self, _: Any) -> None:
        items = self._marked()
        self._list().extend(map(_settled, items))

    def _list(self) -> list[Any]:
        if not self.stack or type(self.stack[-1]) is not list:
            raise ValueError("items for what is no list")
        found: list[Any] = self.stack[-1]
        return found

    def _setitem(self, _: Any) -> None:
        self._filled(self._popped(2))

    def _setitems(self, _: Any) -> None:
        self._filled(self._marked())

    def _filled(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not dict:
            raise ValueError("entries for what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_settled(key)] = _settled(value)

    def _global(self, argument: Any) -> None:
        self.stack.append(_Name(*str(argument).split(" ", 1)))

    def _stack_global(self, _: Any) -> None:
        module, name = self._popped(2)
        self.stack.append(_Name(str(module), str(name)))

    def _reduce(self, _: Any) -> None:
        name, arguments = self._popped(2)
        if not isinstance(name, _Name) or name.key not in _MADE:
            raise ValueError(f"it would call {getattr(name, 'key', 'something')}; only plain data is read")
        self.stack.append(_MADE[name.key](*arguments))

    def _build(self, _: Any) -> None:
        (state,) = self._popped(1)
        if not self.stack or not isinstance(self.stack[-1], _Array | _Dtype):
            raise ValueError("a state for what has none")
        self.stack[-1].build(state)

    def _top(self) -> Any:
        if not self.stack:
            raise ValueError("an instruction that finds nothing to work on")
        return self.stack[-1]

    def _put(self, argument: Any) -> None:
        self.memo[int(argument)] = self._top()

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self._top()

    def _get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": _Machine._tuple,
    "TUPLE1": _Machine._tuple1,
    "TUPLE2": _Machine._tuple2,
    "TUPLE3": _Machine._tuple3,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._setitem,
    "SETITEMS": _Machine._setitems,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "MEMOIZE": _Machine._memoize,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine._put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine._get),
}


def _kept(item: Any) -> Any:
    """In a tuple names and dtypes may stand: they are the arguments and states of NumPy's own makers."""
    return item.value if isinstance(item, _Array) else item


FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float64]

LEVELS = ("I", "II", "III", "IV", "V")
"""HPatches' pairs 1–2, 1–3 … 1–6."""

LARGE = frozenset(
    {"i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding", "v_artisans", "v_astronautis", "v_talent"}
)
"""The sequences of HPatches with pictures above 1600 × 1200, which D2-Net's protocol leaves out (108 stay)."""

PERTURBATION = 0.08
"""How far a generated homography moves a corner, at most, as a share of the sides: 29 px in the mean at 480 × 720."""


# ----------------------------------------------------------------------------------------------------- any data set


def read(path: FilePath, layout: str = "auto", **options: Any) -> FlowDataset:
    """The pairs at `path` in a published layout, told by what is there under "auto"; `options` go to its reader."""
    if layout != "auto" and layout not in LAYOUTS:
        raise InputError(f"layout: expected auto, {', '.join(LAYOUTS)}, got {layout!r}")
    found = _detected(Path(path)) if layout == "auto" else layout
    return LAYOUTS[found](path, **options)


def _detected(root: Path) -> str:
    """Which layout this is, by the files or folders that only it has."""
    tests: tuple[tuple[str, Callable[[Path], bool]], ...] = (
        ("robotcar", is_list),
        ("megadepth", is_index),
        ("colmap", is_model),
        ("kitti", lambda r: _kitti_part(r) is not None),
        ("sintel", lambda r: _sintel_part(r) is not None),
        ("hpatches", lambda r: bool(_sequences(r))),
        ("middlebury", lambda r: bool(_middlebury_scenes(r))),
    )
    if not root.exists():
        raise FileError(f"{root}: no such file or folder")
    for name, test in tests:
        if test(root):
            return name
    raise FileError(f"{root}: none of the layouts {', '.join(LAYOUTS)} is to be found there")


# ------------------------------------------------------------------------------------------------------------ HPatches


def hpatches(
    path: FilePath,
    *,
    part: Literal["all", "viewpoint", "illumination"] = "all",
    levels: Iterable[int] = range(2, 7),
    generated: bool = False,
    large: bool = True,
    seed: int = 0,
) -> FlowDataset:
    """HPatches: folders v_… (viewpoint) and i_… (illumination) with 1.ppm (.jpg, .png) … 6.ppm and H_1_2 … H_1_6.

    Groups are "viewpoint I" … "illumination V", I for the pair 1–2. Under another light nothing moves, so LIFE draws
    the second picture of an illumination pair by a random homography; `generated` does so, with one for each pair that
    depends on nothing but `seed`, sequence, level and size. large=False leaves out the eight sequences of
    large pictures, as D2-Net's protocol of matching does.
    """
    root, kinds = Path(path), {"all": ("v", "i"), "viewpoint": ("v",), "illumination": ("i",)}
    if part not in kinds:
        raise InputError(f"part: expected {', '.join(kinds)}, got {part!r}")
    wanted = tuple(levels)
    if not wanted or not all(isinstance(k, int | np.integer) and 2 <= k <= 6 for k in wanted):
        raise InputError(f"levels: expected numbers of the second picture, 2 to 6, got {wanted}")
    folders = [f for f in _sequences(root) if f.name[0] in kinds[part] and (large or f.name not in LARGE)]
    if not folders:
        raise FileError(f"{root}: no folder v_… or i_… of HPatches for part={part!r}; give the folder that holds them")
    items = [_hpatch(f, k, generated and f.name[0] == "i", seed) for f in folders for k in wanted]
    return FlowDataset(tuple(items), "hpatches")


def _sequences(root: Path) -> list[Path]:
    """The folders v_… and i_… that have homographies, sorted; the one itself where it was given."""
    if not root.is_dir():
        return []
    inside = [root] if re.match(r"[iv]_", root.name) else sorted(root.iterdir())
    return [f for f in inside if re.match(r"[iv]_", f.name) and (f / "H_1_2").is_file()]


def _hpatch(folder: Path, level: int, generated: bool, seed: int) -> FlowPair:
    one, other = _picture(folder, "1"), _picture(folder, str(level))
    H = matrix(folder / f"H_1_{level}")
    kind = {"v": "viewpoint", "i": "illumination"}[folder.name[0]]
    name, group = f"{folder.name} 1–{level}", f"{kind} {LEVELS[level - 2]}"
    if not generated:
        return FlowPair(one, other, name, group, homography=H)
    key = seed, zlib.crc32(f"{folder.name} {level}".encode())
    return FlowPair(one, other, name, group, homography=H, seen_through=lambda size: random_homography(size, seed=key))


def random_homography(
    size: tuple[int, int], *, seed: int | tuple[int, ...], perturbation: float = PERTURBATION
) -> Floats:
    """The homography that moves each corner of an (h, w) picture by a share drawn from ±perturbation of its sides."""
    h, w = size
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], dtype=np.float64)
    drawn = np.random.default_rng(seed).uniform(-perturbation, perturbation, (4, 2))
    return _through_corners(corners, corners + drawn * (w, h))


def _through_corners(start: Floats, end: Floats) -> Floats:
    """The H with H start_i ~ end_i for four points: eight linear equations in its entries, the last of which is 1."""
    rows, right = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    entries = np.linalg.solve(np.array(rows), np.array(right))
    return np.append(entries, 1.0).reshape(3, 3)


def _picture(folder: Path, stem: str) -> Path:
    for suffix in (".ppm", ".jpg", ".png", ".jpeg"):
        if (folder / f"{stem}{suffix}").is_file():
            return folder / f"{stem}{suffix}"
    raise FileError(f"{folder}: no picture {stem}.ppm (.jpg, .png)")


def matrix(path: Path) -> Floats:
    """A text file of nine numbers as a matrix (3, 3)."""
    try:
        text = path.read_text(encoding="utf-8")
        values = np.array([float(word) for word in text.split()])
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a matrix of numbers: {error}") from None
    if len(values) != 9 or not np.isfinite(values).all():
        raise FileError(f"{path}: expected nine numbers, got {len(values)}")
    return values.reshape(3, 3)


# --------------------------------------------------------------------------------------------------------------- KITTI

_KITTI = (("image_2", "kitti2015"), ("colored_0", "kitti2012"), ("image_0", "kitti2012"))
"""The folders of pictures: 2015's, then 2012's in colour and in grey."""


def kitti(path: FilePath, *, occluded: bool = True) -> FlowDataset:
    """KITTI 2012 and 2015: training/{image_2 | colored_0 | image_0}/000000_10.png, …_11.png and flow_occ/000000_10.png.

    With occluded=False the truth is flow_noc, without the pixels that leave the frame or are hidden.
    """
    found = _kitti_part(Path(path))
    if found is None:
        raise FileError(f"{path}: no training/ with image_2, colored_0 or image_0 and flow_occ; give KITTI's folder")
    root, pictures, name = found
    truths = sorted((root / ("flow_occ" if occluded else "flow_noc")).glob("*_10.png"))
    items = []
    for truth in truths:
        first, second = (root / pictures / f"{truth.name[:-7]}_{n}.png" for n in (10, 11))
        _there(truth, first, second)
        items.append(FlowPair(first, second, f"{name} {truth.name[:-7]}", name, flow=truth))
    if not items:
        raise FileError(f"{root}: no flow 000000_10.png in {'flow_occ' if occluded else 'flow_noc'}")
    return FlowDataset(tuple(items), name)


def _kitti_part(root: Path) -> tuple[Path, str, str] | None:
    for folder in (root / "training", root):
        for pictures, name in _KITTI:
            if (folder / pictures).is_dir() and any((folder / f).is_dir() for f in ("flow_occ", "flow_noc")):
                return folder, pictures, name
    return None


# -------------------------------------------------------------------------------------------------------------- Sintel


def sintel(path: FilePath, *, passes: Iterable[str] = ("clean", "final")) -> FlowDataset:
    """MPI Sintel: training/{clean, final}/scene/frame_0001.png, flow/scene/frame_0001.flo, occlusions/ where there are.

    A group is a pass. What occlusions/ marks is counted and also told apart.
    """
    root = _sintel_part(Path(path))
    if root is None:
        raise FileError(f"{path}: no training/ with clean or final and flow; give Sintel's folder")
    wanted = tuple(passes)
    if not wanted or not set(wanted) <= {"clean", "final", "albedo"}:
        raise InputError(f"passes: expected some of clean, final, albedo, got {wanted}")
    truths = sorted((root / "flow").glob("*/frame_*.flo"))
    items = [_sintel_pair(root, which, truth) for which in wanted if (root / which).is_dir() for truth in truths]
    if not items:
        raise FileError(f"{root}: no flow/scene/frame_0001.flo for {', '.join(wanted)}")
    return FlowDataset(tuple(items), "sintel")


def _sintel_part(root: Path) -> Path | None:
    parts = (root / "training", root)
    return next((p for p in parts if (p / "flow").is_dir() and any((p / d).is_dir() for d in ("clean", "final"))), None)


def _sintel_pair(root: Path, which: str, truth: Path) -> FlowPair:
    scene, number = truth.parent.name, _frame(truth)
    first, second = (root / which / scene / f"frame_{n:04d}.png" for n in (number, number + 1))
    _there(truth, first, second)
    hidden = root / "occlusions" / scene / f"frame_{number:04d}.png"
    name = f"{which} {scene} {number}"
    return FlowPair(first, second, name, which, flow=truth, occluded=hidden if hidden.is_file() else None)


def _frame(path: Path) -> int:
    found = re.fullmatch(r"frame_(\d+)", path.stem)
    if found is None:
        raise FileError(f"{path}: expected a name such as frame_0001{path.suffix}")
    return int(found[1])


# ---------------------------------------------------------------------------------------------------------- Middlebury


def middlebury(path: FilePath) -> FlowDataset:
    """Middlebury: scene/frame10.png, frame11.png and flow10.flo, in one folder or under other-data/, other-gt-flow/."""
    scenes = _middlebury_scenes(Path(path))
    if not scenes:
        raise FileError(f"{path}: no folder with frame10.png, frame11.png and flow10.flo; give Middlebury's")
    items = [FlowPair(d / "frame10.png", d / "frame11.png", d.name, "middlebury", flow=f) for d, f in scenes]
    return FlowDataset(tuple(items), "middlebury")


def _middlebury_scenes(root: Path) -> list[tuple[Path, Path]]:
    """Folders of pictures with their flow."""
    if not root.is_dir():
        return []
    data = next((root / d for d in ("other-data", "other-color-twoframes") if (root / d).is_dir()), root)
    truths = root / "other-gt-flow"
    places = [(d, (truths / d.name if truths.is_dir() else d) / "flow10.flo") for d in (root, *sorted(data.iterdir()))]
    return [(d, f) for d, f in places if f.is_file() and all((d / f"frame{n}.png").is_file() for n in (10, 11))]


# -------------------------------------------------------------------------------------------------------------- pieces


def _there(source: Path, *files: Path) -> None:
    for file in files:
        if not file.is_file():
            raise FileError(f"{source}: belongs to {file}, but there is no such file")


def within(name: str, source: FilePath) -> PurePosixPath:
    """A relative path out of a list, which must stay below the folder of the list."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if not name.strip() or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FileError(f"{source}: names {name!r}, which is outside of its folder")
    return path


def _colmap(path: FilePath, **options: Any) -> FlowDataset:
    return colmap(path, **options)


def _megadepth(path: FilePath, **options: Any) -> FlowDataset:
    return megadepth(path, **options)


def _robotcar(path: FilePath, **options: Any) -> FlowDataset:
    return listed(path, **options)


LAYOUTS: dict[str, Callable[..., FlowDataset]] = {
    "hpatches": hpatches,
    "kitti": kitti,
    "sintel": sintel,
    "middlebury": middlebury,
    "megadepth": _megadepth,
    "robotcar": _robotcar,
    "colmap": _colmap,
}


COLUMNS = ("source_image", "target_image", "scene", "XA", "YA", "XB", "YB")
"""The columns of a list: the first picture and its points XA, YA; the second and its points XB, YB."""
MOST_LINE = 64 << 20
"""A line of a list that is longer than this many bytes is refused before it is read."""


# ------------------------------------------------------------------------------------------------- lists of points


def is_list(path: Path) -> bool:
    """Whether this is a list of matching points, or a folder that holds one."""
    try:
        return _list_in(path) is not None
    except FileError:
        return False


def listed(path: FilePath, *, pictures: FilePath | None = None) -> FlowDataset:
    """A list of matching points, as RANSAC-Flow published them: RobotCar (test6511.csv), MegaDepth (test1600Pairs.csv).

    The columns source_image, target_image, scene, XA, YA, XB, YB stand in any order; the points of a pair are numbers
    with ";" between, in pixels, XA, YA in the source and XB, YB in the target. Pictures lie in `pictures`, or in img/,
    imgs/, images/ or a folder named as the list, beside it, each under its scene ("/" for none). As in that protocol
    flow goes from the target (a) to the source (b). Points are read when a pair is loaded: the list has gigabytes.
    """
    file = _list_in(Path(path))
    if file is None:
        raise FileError(f"{path}: no list of matching points (.csv with the columns {', '.join(COLUMNS)})")
    folder = Path(pictures) if pictures is not None else _pictures_of_list(file)
    items = [_listed_pair(file, folder, row) for row in _rows(file)]
    if not items:
        raise FileError(f"{file}: lists no pair")
    return FlowDataset(tuple(items), file.stem)


def _list_in(path: Path) -> Path | None:
    files = [path] if path.is_file() else sorted(path.glob("*.csv")) if path.is_dir() else []
    return next((f for f in files if f.suffix == ".csv" and set(COLUMNS) <= set(_header(f))), None)


def _header(file: Path) -> list[str]:
    try:
        with open(file, "rb") as stream:
            return _cells(stream.readline(4096))
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from None


def _cells(line: bytes) -> list[str]:
    """The cells of a line; no cell of such a list holds a comma."""
    try:
        return [cell.strip().strip('"') for cell in line.decode("utf-8").rstrip("\r\n").split(",")]
    except UnicodeDecodeError:
        return []


def _pictures_of_list(file: Path) -> Path:
    places = [file.parent / d for d in (file.stem, "img", "imgs", "images")]
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        raise FileError(f"{file}: no folder {', '.join(p.name for p in places)} beside it; say where its pictures are")
    return found


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The place in the file of each line, and its cells by column without the points."""
    columns = _header(file)
    with open(file, "rb") as stream:
        stream.readline()
        place = stream.tell()
        for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE), b""), 2):
            if line.strip():
                yield place, _named_cells(file, number, columns, line, ("source_image", "target_image", "scene"))
            place = stream.tell()


def _named_cells(file: Path, number: int, columns: list[str], line: bytes, wanted: tuple[str, ...]) -> dict[str, str]:
    cells = _cells(line)
    if len(cells) != len(columns):
        raise FileError(f"{file}: line {number} has {len(cells)} cells; expected {len(columns)}, one a column")
    return {name: cells[columns.index(name)] for name in wanted}


def _listed_pair(file: Path, folder: Path, row: tuple[int, dict[str, str]]) -> FlowPair:
    place, cells = row
    scene = cells["scene"].strip("/")
    source, target = (
        folder / within(f"{scene}/{cells[name]}" if scene else cells[name], file)
        for name in ("source_image", "target_image")
    )
    name = f"{target.stem} – {source.stem}"
    return FlowPair(target, source, name, scene or file.stem, points=lambda: _points(file, place))


def _points(file: Path, place: int) -> tuple[Floats, Floats]:
    """The points of one pair, of its target and of its source."""
    with open(file, "rb") as stream:
        stream.seek(place)
        cells = _named_cells(file, 0, _header(file), stream.readline(MOST_LINE), ("XA", "YA", "XB", "YB"))
    try:
        xa, ya, xb, yb = (np.array(cells[c].split(";"), dtype=np.float64) for c in ("XA", "YA", "XB", "YB"))
    except ValueError as error:
        raise FileError(f"{file}: points that are not numbers: {error}") from None
    if not len(xa) == len(ya) == len(xb) == len(yb):
        raise FileError(f"{file}: a pair with {len(xa)}, {len(ya)}, {len(xb)} and {len(yb)} coordinates")
    return np.stack([xb, yb], axis=1), np.stack([xa, ya], axis=1)


# ----------------------------------------------------------------------------------------------- MegaDepth's index

_INDEX = ("image_paths", "intrinsics", "poses", "pair_infos", "overlap_matrix")


def is_index(path: Path) -> bool:
    """Whether this is MegaDepth's folder with scene_info/, or such a file."""
    return bool(_scenes(path))


def megadepth(
    path: FilePath,
    *,
    overlap: tuple[float, float] = (0.1, 1.0),
    most: int | None = None,
    points: bool = False,
    pictures: FilePath | None = None,
    seed: int = 0,
) -> FlowDataset:
    """MegaDepth by its scene index: scene_info/*.npz beside Undistorted_SfM/, as D2-Net or LoFTR made it.

    Both have image_paths, intrinsics and poses (world to camera, 4 × 4) of a scene; D2-Net's has overlap_matrix, and
    points3D_id_to_2D, which with `points` gives matching points; LoFTR's has pair_infos ((i, j), overlap, …). Pairs
    whose overlap lies in `overlap` are taken, with `most` so many a scene, drawn by `seed`. F follows from the cameras,
    whose principal points and points are moved by half a pixel, since COLMAP has the first pixel's centre at (½, ½). A
    group is a scene. Index files hold pickled objects; they are read as plain data, and nothing in them is called.
    """
    files = _scenes(Path(path))
    if not files:
        raise FileError(f"{path}: no scene_info/*.npz; give MegaDepth's folder, or one such file")
    low, high = overlap
    if not 0 <= low < high:
        raise InputError(f"overlap: expected two shares, the least and the most, got {overlap}")
    root = Path(pictures) if pictures is not None else _root(Path(path))
    items: list[FlowPair] = []
    for number, file in enumerate(files):
        scene = _Scene(file, root, points)
        pairs = scene.pairs(low, high)
        if most is not None and len(pairs) > most:
            pairs = pairs[np.sort(np.random.default_rng((seed, number)).choice(len(pairs), most, replace=False))]
        items += [scene.pair(int(i), int(j)) for i, j in pairs]
    if not items:
        raise FileError(f"{path}: no pair overlaps by {low:g} to {high:g}")
    return FlowDataset(tuple(items), "megadepth")


def _scenes(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".npz" else []
    folders = [f for f in sorted(path.glob("scene_info*")) if f.is_dir()] if path.is_dir() else []
    folders = folders or ([path] if path.name.startswith("scene_info") else [])
    return [file for folder in folders for file in sorted(folder.glob("*.npz"))]


def _root(path: Path) -> Path:
    """The folder that the paths of an index start from."""
    folder = path.parent if path.is_file() else path
    return folder.parent if folder.name.startswith("scene_info") else folder


class _Scene:
    """One file of the index."""

    def __init__(self, file: Path, root: Path, points: bool) -> None:
        names = (*_INDEX, "points3D_id_to_2D") if points else _INDEX
        self.file, self.root, self.held = file, root, object_arrays(file, names)
        missing = [n for n in ("image_paths", "intrinsics", "poses") if n not in self.held]
        if missing or not {"pair_infos", "overlap_matrix"} & set(self.held):
            raise FileError(f"{file}: has no {', '.join(missing) or 'pair_infos or overlap_matrix'}; no scene index")

    def pairs(self, low: float, high: float) -> NDArray[np.int64]:
        """The pairs (n, 2) of pictures that are there and overlap enough."""
        there = [isinstance(p, str) and p for p in np.atleast_1d(self.held["image_paths"])]
        try:
            found = self._overlapping(low, high)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise FileError(f"{self.file}: its pairs are not (i, j), overlap: {error}") from None
        if any(not 0 <= k < len(there) for pair in found for k in pair):
            raise FileError(f"{self.file}: names a picture that it does not list")
        return np.array([p for p in found if there[p[0]] and there[p[1]]], dtype=np.int64).reshape(-1, 2)

    def _overlapping(self, low: float, high: float) -> list[tuple[int, int]]:
        if "pair_infos" in self.held:
            return [(int(info[0][0]), int(info[0][1])) for info in self.held["pair_infos"] if low <= info[1] <= high]
        shares = np.asarray(self.held["overlap_matrix"], dtype=np.float64)
        return [(int(i), int(j)) for i, j in np.argwhere((shares >= low) & (shares <= high)) if i != j]

    def pair(self, i: int, j: int) -> FlowPair:
        """Two pictures with their cameras, and with their common points where they were asked for."""
        (Ki, Ti), (Kj, Tj) = self._camera(i), self._camera(j)
        relative = Tj @ np.linalg.inv(Ti)
        a, b = (self.root / within(str(self.held["image_paths"][k]), self.file) for k in (i, j))
        R, t = relative[:3, :3], relative[:3, 3]
        return FlowPair(
            *(a, b, f"{a.stem} – {b.stem}", self.file.stem),
            points=(lambda: self._common(i, j)) if "points3D_id_to_2D" in self.held else None,
            **between(Ki, Kj, R, t),
        )

    def _camera(self, k: int) -> tuple[Floats, Floats]:
        try:
            K = np.array(self.held["intrinsics"][k], dtype=np.float64).reshape(3, 3)
            T = np.eye(4)
            pose = np.array(self.held["poses"][k], dtype=np.float64)
            T[: pose.shape[0]] = pose
            np.linalg.inv(T), np.linalg.inv(K)
        except (ValueError, TypeError, IndexError) as error:
            raise FileError(f"{self.file}: picture {k} has no camera: {error}") from None
        if not (np.isfinite(K).all() and np.isfinite(T).all()):
            raise FileError(f"{self.file}: picture {k} has no camera: a number is not finite")
        K[:2, 2] -= 0.5
        return K, T

    def _common(self, i: int, j: int) -> tuple[Floats, Floats]:
        try:
            one, two = self.held["points3D_id_to_2D"][i], self.held["points3D_id_to_2D"][j]
            shared = [k for k in one if k in two]
            a, b = (np.array([at[k] for k in shared], dtype=np.float64).reshape(-1, 2) - 0.5 for at in (one, two))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise FileError(f"{self.file}: the points of pictures {i} and {j} are damaged: {error}") from None
        return a, b


def between(Ka: Floats, Kb: Floats, R: Floats, t: Floats) -> dict[str, Any]:
    """The cameras of a pair and the fundamental matrix that follows from them, as FlowPair takes them."""
    cameras = [torch.from_numpy(np.ascontiguousarray(m)) for m in (Ka, Kb, R, t)]
    F = fundamental(*cameras).numpy() if float(np.linalg.norm(t)) > 0 else None
    return {"F": F, "Ka": Ka, "Kb": Kb, "R": R, "t": t}


Index: TypeAlias = NDArray[np.int64]

MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
"""The camera models that are read, in the order of their numbers; those with distortion only where it is 0."""
_PARAMETERS = (3, 4, 4, 5, 8)
SHORTEST = 1e-9
"""A focal length below this many pixels, or anything of a camera beyond 1e9, belongs to none."""
MOST_NAME = 4096
"""A name of a picture that is longer than this many bytes is refused."""
LEAST = 30
"""Points that two pictures must share, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Camera:
    """Size (h, w) and intrinsics, pixel centres at integers."""

    size: tuple[int, int]
    K: Floats


@dataclass(frozen=True, eq=False)
class View:
    """A picture of the model: X_camera = R X_world + t; points (n, 2) in pixels and the ids (n,) of their 3-D ones."""

    name: str
    camera: int
    R: Floats
    t: Floats
    points: Floats
    ids: Index


def colmap(
    path: FilePath,
    *,
    pictures: FilePath | None = None,
    least: int = LEAST,
    most: int | None = None,
    seed: int = 0,
) -> FlowDataset:
    """A COLMAP model of undistorted pictures: pairs that share `least` 3-D points, with F, cameras and those points.

    `path` is the folder of cameras, images (.txt or .bin), or one that holds it as sparse/ or sparse/0; pictures lie in
    `pictures`, or in images/ beside it. COLMAP has the centre of the first pixel at (½, ½): principal points and points
    are moved by half a pixel. With `most`, so many pairs are drawn by `seed`. Cameras with distortion are refused:
    colmap image_undistorter makes them pinholes.
    """
    folder = _model(Path(path))
    if folder is None:
        raise FileError(f"{path}: no cameras and images (.txt or .bin) of COLMAP, there or in sparse/ or sparse/0")
    cameras, views = cameras_of(folder), views_of(folder)
    root = Path(pictures) if pictures is not None else _pictures(Path(path), folder)
    pairs = shared(views, least)
    if most is not None and len(pairs) > most:
        pairs = pairs[np.sort(np.random.default_rng(seed).choice(len(pairs), most, replace=False))]
    if not len(pairs):
        raise FileError(f"{folder}: no two of {len(views)} pictures share {least} points; ask for fewer")
    return FlowDataset(tuple(_pair(folder, root, cameras, views[i], views[j]) for i, j in pairs), _name(Path(path)))


def is_model(path: Path) -> bool:
    """Whether this is the folder of a COLMAP model."""
    return _model(path) is not None


def _model(path: Path) -> Path | None:
    places = (path, path / "sparse", path / "sparse" / "0", path / "dense" / "sparse")
    return next((p for p in places if any((p / f"cameras.{s}").is_file() for s in ("bin", "txt"))), None)


def _pictures(path: Path, folder: Path) -> Path:
    places = [p / "images" for p in (path, folder, folder.parent, folder.parent.parent)]
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        raise FileError(f"{folder}: no images/ beside it; say where its pictures are")
    return found


def _name(path: Path) -> str:
    return path.resolve().name


def shared(views: list[View], least: int) -> Index:
    """The pairs (n, 2) of views with at least so many 3-D points in common."""
    if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
        raise InputError(f"least: expected a whole number of points ≥ 1, got {least!r}")
    _, columns = np.unique(np.concatenate([np.unique(v.ids) for v in views]), return_inverse=True)
    rows = np.repeat(np.arange(len(views)), [len(np.unique(v.ids)) for v in views])
    seen = csr_matrix((np.ones(len(rows), dtype=np.int64), (rows, columns)))
    common = (seen @ seen.T).tocoo()
    chosen = (common.row < common.col) & (common.data >= least)
    pairs = np.stack([common.row[chosen], common.col[chosen]], axis=1).astype(np.int64)
    return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])


def _pair(folder: Path, root: Path, cameras: dict[int, Camera], one: View, two: View) -> FlowPair:
    unknown = [v.name for v in (one, two) if v.camera not in cameras]
    if unknown:
        raise FileError(f"{folder}: {unknown[0]} has a camera that is not listed")
    R = two.R @ one.R.T
    a, b = (root / within(v.name, folder) for v in (one, two))
    geometry = between(cameras[one.camera].K, cameras[two.camera].K, R, two.t - R @ one.t)
    return FlowPair(a, b, f"{a.stem} – {b.stem}", "colmap", points=lambda: _common(one, two), **geometry)


def _common(one: View, two: View) -> tuple[Floats, Floats]:
    """Where two pictures see the same 3-D points; of one that is seen twice, the first place."""
    _, first, second = np.intersect1d(one.ids, two.ids, return_indices=True)
    return one.points[first], two.points[second]


# ------------------------------------------------------------------------------------------------------------- cameras


def cameras_of(folder: Path) -> dict[int, Camera]:
    """The cameras of a model by their numbers."""
    binary = folder / "cameras.bin"
    rows = _binary_cameras(binary) if binary.is_file() else _text_cameras(folder / "cameras.txt")
    return {number: _camera(folder, number, *row) for number, *row in rows}


def _camera(folder: Path, number: int, model: str, width: int, height: int, p: list[float]) -> Camera:
    if model not in MODELS:
        raise FileError(
            f"{folder}: camera {number} is {model}; undistort the pictures (colmap image_undistorter) first"
        )
    if len(p) != _PARAMETERS[MODELS.index(model)] or not np.isfinite(p).all():
        raise FileError(f"{folder}: camera {number} has {len(p)} parameters that do not make a {model}")
    single = model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL")
    fx, fy, cx, cy, *bent = [p[0], *p] if single else p
    if not (min(fx, fy) > SHORTEST and max(fx, fy, abs(cx), abs(cy)) < 1 / SHORTEST) or not min(width, height) >= 1:
        raise FileError(f"{folder}: camera {number} has {len(p)} parameters that do not make a {model}")
    if any(bent):
        raise FileError(f"{folder}: camera {number} has distortion; undistort the pictures (colmap image_undistorter)")
    return Camera((height, width), np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1.0]]))


def _text_cameras(file: Path) -> Iterator[tuple[Any, ...]]:
    """CAMERA_ID MODEL WIDTH HEIGHT PARAMS…"""
    for number, line in _lines(file):
        if not line:
            continue
        words = line.split()
        try:
            yield int(words[0]), words[1], int(words[2]), int(words[3]), [float(w) for w in words[4:]]
        except (ValueError, IndexError):
            raise FileError(f"{file}: line {number} is no camera: {line[:60]!r}") from None


def _binary_cameras(file: Path) -> Iterator[tuple[Any, ...]]:
    with BinaryFile(file) as reader:
        for _ in range(reader.count(32)):
            number, model, width, height = reader.take("<IiQQ")
            if not 0 <= model < len(MODELS):
                words = "undistort the pictures (colmap image_undistorter) first"
                raise FileError(f"{file}: camera {number} is of model {model}; {words}")
            yield number, MODELS[model], width, height, list(reader.take(f"<{_PARAMETERS[model]}d"))


# --------------------------------------------------------------------------------------------------------------- views


def views_of(folder: Path) -> list[View]:
    """The pictures of a model, sorted by name."""
    binary = folder / "images.bin"
    found = _binary_views(binary) if binary.is_file() else _text_views(folder / "images.txt")
    views = sorted(found, key=lambda v: v.name)
    if not views:
        raise FileError(f"{folder}: lists no picture")
    return views


def _view(file: Path, pose: list[float], camera: int, name: str, table: Floats) -> View:
    """A quaternion w x y z, a translation, and rows x y id (−1 for no 3-D point)."""
    if len(pose) != 7 or not np.isfinite(pose).all() or not 0 < np.linalg.norm(pose[:4]) < np.inf:
        raise FileError(f"{file}: {name} has no pose")
    known = (table[:, 2] >= 0) & (table[:, 2] < 2.0**63) & np.isfinite(table).all(axis=1)
    points, ids = table[known, :2] - 0.5, table[known, 2].astype(np.int64)
    return View(name, camera, rotation(np.array(pose[:4])), np.array(pose[4:7]), points, ids)


def rotation(q: Floats) -> Floats:
    """The rotation of a quaternion (w, x, y, z) of any length."""
    w, x, y, z = q / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _text_views(file: Path) -> Iterator[View]:
    """IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, and on the next line X Y POINT3D_ID of each of its points."""
    lines = _lines(file)
    for number, line in lines:
        if not line:
            continue
        words = line.split(maxsplit=9)
        points = next(lines, (number, ""))[1]
        try:
            table = np.array(points.split(), dtype=np.float64).reshape(-1, 3)
            yield _view(file, [float(w) for w in words[1:8]], int(words[8]), words[9], table)
        except (ValueError, IndexError):
            raise FileError(f"{file}: line {number} is no picture with its points: {line[:60]!r}") from None


def _binary_views(file: Path) -> Iterator[View]:
    row = np.dtype([("x", "<f8"), ("y", "<f8"), ("id", "<i8")])
    with BinaryFile(file) as reader:
        for _ in range(reader.count(73)):
            _, *pose, camera = reader.take("<I7dI")
            name = reader.name()
            raw = np.frombuffer(reader.bytes(reader.count(row.itemsize) * row.itemsize), dtype=row)
            table = np.stack([raw["x"], raw["y"], raw["id"].astype(np.float64)], axis=1)
            yield _view(file, pose, camera, name, table)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, without remarks; empty ones are kept."""
    try:
        with open(file, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if not line.startswith("#"):
                    yield number, line.strip()
    except FileNotFoundError:
        raise FileError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: cannot be read: {error}") from None


class BinaryFile:
    """A little-endian file that never gives more than it holds."""

    def __init__(self, file: Path) -> None:
        self.file, self.size = file, file.stat().st_size
        self.stream: IO[bytes] = open(file, "rb")  # noqa: SIM115

    def __enter__(self) -> BinaryFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def bytes(self, n: int) -> bytes:
        if n > self.size - self.stream.tell():
            raise FileError(f"{self.file}: ends before what it announces; it is truncated")
        return self.stream.read(n)

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def count(self, least: int) -> int:
        """A number of things of at least so many bytes each, which must fit into what is left."""
        (n,) = self.take("<Q")
        if n * least > self.size - self.stream.tell():
            raise FileError(f"{self.file}: announces {n:,} entries, more than it can hold; it is damaged")
        return int(n)

    def name(self) -> str:
        """Characters up to a zero."""
        start = self.stream.tell()
        letters, zero, _ = self.stream.read(MOST_NAME).partition(b"\0")
        if not zero:
            raise FileError(f"{self.file}: a name without an end; it is damaged")
        self.stream.seek(start + len(letters) + 1)
        return letters.decode("utf-8", "replace")
