"""Tiny made-up files in the layouts of public data sets; every answer is known because it was put there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from likewise.types import Signature

RELATIONS = {"fs": "father-son", "fd": "father-dau", "ms": "mother-son", "md": "mother-dau"}


def picture(path: Path, seed: int, size: tuple[int, int] = (16, 16)) -> Path:
    """A picture of noise, the same for the same seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def cells(rows: list[list[object]]) -> np.ndarray:
    """A MATLAB cell array of these rows."""
    table = np.empty((len(rows), len(rows[0])), dtype=object)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            table[i, j] = value
    return table


def kinfacew(root: Path, families: int = 10) -> Path:
    """Parent n and child n share their left half; five folds, whose negatives are their children moved on by one."""
    per_fold = families // 5
    for r, (relation, folder) in enumerate(RELATIONS.items()):
        rows: list[list[object]] = []
        for n in range(1, families + 1):
            base = np.random.default_rng(1000 * r + n).integers(0, 256, (32, 32, 3)).astype(np.uint8)
            for which in (1, 2):
                own = np.random.default_rng(90_000 + 1000 * r + 10 * n + which).integers(0, 256, (32, 32, 3))
                face = np.where(np.arange(32)[None, :, None] < 16, base, own).astype(np.uint8)
                path = root / "images" / folder / f"{relation}_{n:03d}_{which}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(face).save(path)
        for fold in range(1, 6):
            members = [(fold - 1) * per_fold + i + 1 for i in range(per_fold)]
            rows += [[fold, 1, f"{relation}_{n:03d}_1.png", f"{relation}_{n:03d}_2.png"] for n in members]
            moved = members[1:] + members[:1]
            rows += [
                [fold, 0, f"{relation}_{n:03d}_1.png", f"{relation}_{m:03d}_2.png"]
                for n, m in zip(members, moved, strict=True)
            ]
        (root / "meta_data").mkdir(exist_ok=True)
        savemat(root / "meta_data" / f"{relation}_pairs.mat", {"pairs": cells(rows)})
    return root


def prid(root: Path, both: int = 4, only_b: int = 2, shots: int = 3) -> Path:
    """People 1 … both in two cameras, then `only_b` in camera B alone, one (number 900) in camera A alone."""
    for camera, people in (("cam_a", [*range(1, both + 1), 900]), ("cam_b", range(1, both + only_b + 1))):
        for person in people:
            for shot in range(1, shots + 1):
                picture(root / "multi_shot" / camera / f"person_{person:04d}" / f"{shot:04d}.png", 100 * person + shot)
    return root


def ilids(root: Path, people: int = 6, shots: int = 2, splits: int = 10) -> Path:
    """Person folders with gaps in their numbers, as published; splits count the folders, not the names."""
    numbers = [1, 3, 4, 9, 10, 12, 15, 20][:people]
    for camera in ("cam1", "cam2"):
        for number in numbers:
            for shot in range(shots):
                name = f"{camera}_person{number:03d}_{shot:05d}.png"
                picture(root / "i-LIDS-VID" / "sequences" / camera / f"person{number:03d}" / name, 10 * number + shot)
    orders = np.stack([np.random.default_rng(s).permutation(people) + 1 for s in range(splits)])
    (root / "train-test people splits").mkdir()
    savemat(root / "train-test people splits" / "train_test_splits_ilidsvid.mat", {"ls_set": orders})
    return root


def traffic(root: Path, labels: tuple[str, ...] = ("light", "heavy", "light", "heavy")) -> Path:
    """Videos of a square that moves fast (light) or hardly at all (heavy); two splits, even against odd numbers."""
    names = [f"cctv{i:03d}x2004080516x0{i:04d}" for i in range(1, len(labels) + 1)]
    for i, (name, label) in enumerate(zip(names, labels, strict=True)):
        video(root / "video" / f"{name}.avi", step=5 if label == "light" else 1, top=10 * (i % 3))
    numbers = list(range(1, len(labels) + 1))
    train, test = [numbers[::2], numbers[1::2]], [numbers[1::2], numbers[::2]]
    lines = [f"{i}\t{n}\t{c}" for i, n, c in zip(numbers, names, labels, strict=True)]
    (root / "ImageMaster").write_text("\n".join(["# index\troot\tclass", *lines]) + "\n")
    for part, rows in (("train", train), ("test", test)):
        (root / f"EvalSet_{part}").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return root


def film(path: Path, frames: Sequence[np.ndarray] | np.ndarray, codec: str = "mpeg4") -> Path:
    """A video of these pictures (h, w, 3), as a player shows them."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def video(path: Path, *, frames: int = 8, step: int = 4, top: int = 0, size: tuple[int, int] = (120, 160)) -> Path:
    """A white square of 30 pixels on black that moves right by `step` a frame, its upper edge at 2·top."""
    pictures = np.zeros((frames, *size, 3), np.uint8)
    for t in range(frames):
        pictures[t, 2 * top : 2 * top + 30, t * step : t * step + 30] = 255
    return film(path, pictures)


def views(root: Path, classes: int = 3, objects: int = 4, shots: int = 3) -> Path:
    """class/object/view.png, ETH-80's layout: pictures of one class share a brightness."""
    for c in range(classes):
        for o in range(1, objects + 1):
            for v in range(shots):
                rng = np.random.default_rng(100 * c + 10 * o + v)
                pixels = np.clip(60 + 60 * c + rng.normal(0, 10, (20, 20, 3)), 0, 255).astype(np.uint8)
                path = root / str(c + 1) / str(o) / f"{v:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    return root


TS = """# a made-up file
@problemName Toy
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true up down
@data
1,2,3:10,20,30:up
4,5:40,50:down
"""


def stack_sets(path: str | Path, sets: Sequence[Signature], **each: Sequence[object]) -> None:
    """An .npz of sets one after the other, with what `each` set has: labels, levels."""
    points, weights = (np.concatenate([getattr(s, name) for s in sets]) for name in ("points", "weights"))
    np.savez(path, points=points, weights=weights, offsets=np.cumsum([0, *map(len, sets)]), **each)
