"""The table of readers: what is made, which files of it are edited and how, and how it is read to the end."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz import forms, seeds
from tests.fuzz.cases import Reader
from tests.fuzz.mutations import as_json, as_json_lines, bytewise, text

ANY = (bytewise,)
NPZ = (forms.zipped(forms.npy),)
ARRAYS = {"*.npy": (forms.npy,), "*.npz": NPZ}
MATLAB = (forms.words32, forms.unpacked(forms.words32))
PICKLES = (forms.zipped(forms.pickled),)


def files(folder: Path) -> list[Path]:
    """The files that are read, in order."""
    return sorted(p for p in folder.iterdir() if p.is_file())


@dataclass(frozen=True)
class each:  # noqa: N801
    """Read every file of a folder; `one` reads the one that was edited."""

    one: Callable[[Path], object]

    def __call__(self, folder: Path) -> None:
        for path in files(folder):
            self.one(path)


# ------------------------------------------------------------------------------------------------------- how it is read


def picture(path: Path) -> None:
    from likewise import media

    media.is_image(path)
    media.read_array(path)
    media.decode(path.read_bytes(), side=8)
    media.read(path)


def film(path: Path) -> None:
    from likewise import media

    list(media.frames(path, most=8, every=2))


def flow(path: Path) -> None:
    from likewise.types import read_flow

    np.asarray(read_flow(path).vectors).sum()


def index(folder: Path) -> None:
    """Open, search with and without a filter, look at what is kept, compare parts, check everything."""
    from likewise.search import Collection
    from likewise.search.shortlist import local_distances

    with Collection.open(folder / "i") as opened:
        repr(opened), len(opened), list(opened), opened.describe(), opened.check()
        rows = np.eye(2, opened.about.dim, dtype=np.float32)
        opened.nearest(rows, 3)
        opened.nearest(rows, 3, label="k1")
        parts = list(opened.index.parts(list(opened.index.names())).values())
        if parts:
            local_distances(parts[0], np.stack(parts[:4]))


def bank(folder: Path) -> None:
    from likewise.distributions import Bank
    from likewise.store.job import Job

    job = Job.open(folder / "bank")
    repr(job), job.verify(), job.identity, job.finished()
    found = Bank.open(folder / "bank")
    repr(found), found.log_weights(0.5), found.ess(0.5), found.sample(3, 0.5, seed=0)


def run(folder: Path) -> None:
    from likewise.store.run import Run

    found = Run.open(folder / "run")
    repr(found), found.seed, found.metrics(), found.result


def matrix(folder: Path) -> None:
    np.asarray(seeds.distance_matrix(folder)).sum()  # what is damaged is made again


def model(path: Path) -> None:
    import likewise as lw

    repr(lw.load(path))


def state(path: Path) -> None:
    from likewise.nn import named

    named("convnet", path)


def official(path: Path) -> None:
    import likewise as lw

    lw.pixels.RAFT.from_official(path)


def generator(path: Path) -> None:
    from likewise.distributions.data import load

    made = load(path)
    made(made.latent.sample(2, np.random.default_rng(0)))


# -------------------------------------------------------------------------------------------------------------- sealing


def seal_index(folder: Path) -> None:
    """The sum of the approximate index into the SQLite file."""
    with contextlib.closing(sqlite3.connect(folder / "i" / "index.sqlite")) as db:
        said = json.loads(db.execute("SELECT value FROM meta WHERE key = 'cache'").fetchone()[0])
        said["sha256"] = _sum(folder / "i" / "index.faiss")
        db.execute("UPDATE meta SET value = ? WHERE key = 'cache'", (json.dumps(said),))
        db.commit()


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------------------------ the table


def _signatures(path: Path) -> Any:
    from likewise.inputs import load_signatures

    return load_signatures(path)


def _reference(path: Path) -> None:
    from likewise.distributions import Bank

    found = Bank.from_reference_npz(path)
    repr(found), found.log_weights(0.5)


def _matches(path: Path) -> None:
    from likewise.pixels.matching import Matches

    found = Matches.open(path)
    repr(found), found.homography(), len(found.a)


def _exif(path: Path) -> None:
    from likewise.media import read_exif

    read_exif(path)


def _features(path: Path) -> None:
    import likewise as lw

    lw.distributions.compare(path, np.random.default_rng(5).normal(size=(40, 3)))


def _arrays(path: Path) -> None:
    from likewise.media import load_arrays

    repr(load_arrays(path))


def _objects(path: Path) -> None:
    """Arrays of objects: unpickled by the allow-list; that nothing but arrays was asked for is checked here."""
    from likewise.media import unpickle_arrays

    repr(unpickle_arrays(path.read_bytes(), str(path)))


def _mat(path: Path) -> None:
    from likewise.media import read_mat

    repr(read_mat(path, ["x", "cells"]))


MATRIX = {"m/*.npy": (forms.npy,), "m/*.json": (as_json,)}
BANK = {"bank/job.sqlite": (*ANY, forms.job)}

READERS: tuple[Reader, ...] = (
    Reader("png", seeds.png, each(picture), {"*": (bytewise, forms.png, forms.png)}),
    Reader("jpeg", seeds.jpeg, each(picture), {"*": ANY}),
    Reader("webp", seeds.webp, each(picture), {"*": ANY}),
    Reader("tiff", seeds.tiff, each(picture), {"*": (bytewise, forms.words32)}),
    Reader("bmp", seeds.bmp, each(picture), {"*": ANY}),
    Reader("gif", seeds.gif, each(picture), {"*": ANY}),
    Reader("ppm", seeds.ppm, each(picture), {"*": (bytewise, text)}),
    Reader("avif", seeds.avif, each(picture), {"*": ANY}),
    Reader("exif", seeds.jpeg, each(_exif), {"a.jpg": ANY}),
    Reader("video", seeds.video, each(film), {"*": ANY}, needs=("av",)),
    Reader("arrays", seeds.arrays, each(_arrays), ARRAYS),
    Reader("object arrays", seeds.object_arrays, each(_objects), {"*": (forms.pickled, bytewise)}),
    Reader("matlab", seeds.matlab, each(_mat), {"*": MATLAB}, allowed=("subprocess.Popen",)),
    Reader("flow .flo", seeds.flo, each(flow), {"*": ANY}),
    Reader("flow png", seeds.kitti, each(flow), {"*": (bytewise, forms.png, forms.png)}),
    Reader("sets npz", seeds.set_arrays, each(_signatures), {"*": NPZ}),
    Reader("matches npz", seeds.match_arrays, each(_matches), {"*": NPZ}),
    Reader("reference npz", seeds.reference_arrays, each(_reference), {"*": NPZ}),
    Reader("features", seeds.feature_arrays, each(_features), ARRAYS),
    Reader("learned metric", seeds.learned, each(model), {"*": (forms.sealed,)}),
    Reader("raft", seeds.raft, each(model), {"*": (forms.sealed,)}),
    Reader("aligner", seeds.aligner, each(model), {"*": (forms.sealed,)}),
    Reader("embedder", seeds.embedder, each(model), {"*": (forms.sealed,)}),
    Reader(
        "state dict", seeds.state_dicts, each(state),
        {"a.pth": PICKLES, "b.pt": (forms.pickled,), "c.safetensors": (forms.safetensors,)},
    ),
    Reader(
        "generator", seeds.generators, each(generator),
        {"*.pt": PICKLES, "[dv]*.safetensors": (forms.safetensors,), "saved.safetensors": (forms.sealed,)},
    ),
    Reader("onnx", seeds.onnx_file, each(generator), {"*": ANY}, needs=("onnx", "onnxruntime")),
    Reader("bank", seeds.bank, bank, BANK),
    Reader("saved bank", seeds.saved_bank, bank, BANK),
    Reader("run", seeds.run, run, {"run/*.json": (as_json,), "run/*.jsonl": (as_json_lines, bytewise)}),
    Reader("distance matrix", seeds.distance_matrix, matrix, MATRIX),
    Reader("index", seeds.index, index, {"i/index.sqlite": ANY}),
    Reader("ivf index", seeds.ivf_index, index, {"i/index.faiss": ANY}, seal_index),
)  # fmt: skip


def missing(reader: Reader) -> str:
    """The package that a reader needs and that is not installed, or ""."""
    return next((name for name in reader.needs if importlib.util.find_spec(name) is None), "")
