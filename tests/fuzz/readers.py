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
from tests.worlds import networks

import likewise as lw
from likewise import inputs, media
from likewise.distributions import Bank
from likewise.distributions.data import load
from likewise.nn import named
from likewise.pixels.matching import Matches
from likewise.search import Collection
from likewise.search.local import Local
from likewise.store.job import Job
from likewise.store.run import Run
from likewise.types import read_flow

ANY, PNG = (bytewise,), (bytewise, forms.png, forms.png)
NPZ = (forms.zipped(forms.npy),)
ARRAYS = {"*.npy": (forms.npy,), "*.npz": NPZ}
MATLAB = (forms.words32, forms.unpacked(forms.words32))
PICKLES = (forms.zipped(forms.pickled),)


@dataclass(frozen=True)
class each:  # noqa: N801
    """Read every file of a folder; `one` reads the one that was edited."""

    one: Callable[[Path], object]

    def __call__(self, folder: Path) -> None:
        for path in sorted(p for p in folder.iterdir() if p.is_file()):
            self.one(path)


# ------------------------------------------------------------------------------------------------------- how it is read


def picture(path: Path) -> None:
    media.is_image(path)
    media.read_array(path)
    media.decode(path.read_bytes(), side=8)
    media.read(path)


def index(folder: Path) -> None:
    """Open, search with and without a filter, look at what is kept, compare parts, check everything."""
    with Collection.open(folder / "i") as opened:
        repr(opened), len(opened), list(opened), opened.describe(), opened.check()
        rows = np.eye(2, opened.about.dim, dtype=np.float32)
        opened.nearest(rows, 3)
        opened.nearest(rows, 3, label="k1")
        for data in opened.index.features(list(opened.index.names())).values():
            Local.from_bytes(data)


def bank(folder: Path) -> None:
    job = Job.open(folder / "bank")
    repr(job), job.verify(), job.identity, job.finished()
    measured = Bank.open(folder / "bank")
    repr(measured), measured.log_weights(0.5), measured.ess(0.5), measured.sample(3, 0.5, seed=0)


def run(folder: Path) -> None:
    measured = Run.open(folder / "run")
    repr(measured), measured.metrics(), measured.result


UNSAID: dict[str, dict[str, Any]] = {"dcgan": networks.EXAMPLE, "stylegan2": {"clamp": 256.0, "rate": 0.01}}
"""What weights of these families do not say."""


def generator(path: Path) -> None:
    made = load(path, **UNSAID.get(path.stem, {}))
    made(made.latent.sample(2, np.random.default_rng(0)))


def matches(path: Path) -> None:
    measured = Matches.open(path)
    repr(measured), measured.homography(), len(measured.a)


def matlab(path: Path) -> None:
    repr(media.read_mat(path, ["x", "cells"]))


def reference(path: Path) -> None:
    repr(Bank.from_reference_npz(path).log_weights(0.5))


def features(path: Path) -> None:
    lw.distributions.compare(path, np.random.default_rng(5).normal(size=(40, 3)))


def objects(path: Path) -> None:
    """Arrays of objects: unpickled by the allow-list; that nothing but arrays was asked for is checked here."""
    repr(media.unpickle_arrays(path.read_bytes(), str(path)))


def seal_index(folder: Path) -> None:
    """The sum of the approximate index into the SQLite file."""
    with contextlib.closing(sqlite3.connect(folder / "i" / "index.sqlite")) as db:
        said = json.loads(db.execute("SELECT value FROM meta WHERE key = 'cache'").fetchone()[0])
        said["sha256"] = hashlib.sha256((folder / "i" / "index.faiss").read_bytes()).hexdigest()
        db.execute("UPDATE meta SET value = ? WHERE key = 'cache'", (json.dumps(said),))
        db.commit()


# ------------------------------------------------------------------------------------------------------------ the table

PICTURES = {"png": PNG, "tiff": (bytewise, forms.words32), "ppm": (bytewise, text)}
MATRIX = {"m/*.npy": (forms.npy,), "m/*.json": (as_json,)}
BANK = {"bank/job.sqlite": (*ANY, forms.job)}

READERS: tuple[Reader, ...] = (
    *(Reader(kind, seeds.pictures(kind), each(picture), {"*": PICTURES.get(kind, ANY)}) for kind in seeds.PICTURES),
    Reader("heic", seeds.heic, each(picture), {"*": ANY}, needs=("pillow_heif",)),
    Reader("raw", seeds.camera, each(picture), {"*": (bytewise, forms.words32)}, needs=("rawpy",)),
    Reader("exif of raw", seeds.camera, each(media.read_exif), {"*": (bytewise, forms.words32)}),
    Reader("exif", seeds.pictures("jpeg"), each(media.read_exif), {"0.jpeg": ANY}),
    Reader("video", seeds.video, each(lambda p: list(media.frames(p, most=8, every=2))), {"*": ANY}, needs=("av",)),
    Reader("arrays", seeds.arrays, each(lambda p: repr(media.load_arrays(p))), ARRAYS),
    Reader("object arrays", seeds.object_arrays, each(objects), {"*": (forms.pickled, bytewise)}),
    Reader("matlab", seeds.matlab, each(matlab), {"*": MATLAB}, allowed=("subprocess.Popen",)),
    Reader("flow .flo", seeds.flo, each(read_flow), {"*": ANY}),
    Reader("flow png", seeds.kitti, each(read_flow), {"*": PNG}),
    Reader("sets npz", seeds.set_arrays, each(inputs.load_signatures), {"*": NPZ}),
    Reader("matches npz", seeds.match_arrays, each(matches), {"*": NPZ}),
    Reader("reference npz", seeds.reference_arrays, each(reference), {"*": NPZ}),
    Reader("features", seeds.feature_arrays, each(features), ARRAYS),
    Reader("learned metric", seeds.learned, each(lambda p: repr(lw.load(p))), {"*": (forms.sealed,)}),
    Reader("raft", seeds.raft, each(lambda p: repr(lw.load(p))), {"*": (forms.sealed,)}),
    Reader("aligner", seeds.aligner, each(lambda p: repr(lw.load(p))), {"*": (forms.sealed,)}),
    Reader("embedder", seeds.embedder, each(lambda p: repr(lw.load(p))), {"*": (forms.sealed,)}),
    Reader(
        "state dict", seeds.state_dicts, each(lambda p: named("convnet", p)),
        {"a.pth": PICKLES, "b.pt": (forms.pickled,), "c.safetensors": (forms.safetensors,)},
    ),
    Reader(
        "generator", seeds.generators, each(generator),
        {"*.pt": PICKLES, "[dv]*.safetensors": (forms.safetensors,), "saved.safetensors": (forms.sealed,)},
    ),
    Reader(
        "snapshot", seeds.training_snapshots, each(lambda p: repr(load(p))), {"*": (forms.pickled, bytewise)},
    ),
    Reader("bank", seeds.bank, bank, BANK),
    Reader("saved bank", seeds.saved_bank, bank, BANK),
    Reader("run", seeds.run, run, {"run/*.json": (as_json,), "run/*.jsonl": (as_json_lines, bytewise)}),
    Reader("distance matrix", seeds.distance_matrix, lambda p: np.asarray(seeds.distance_matrix(p)).sum(), MATRIX),
    Reader("index", seeds.index, index, {"i/index.sqlite": ANY}),
    Reader("ivf index", seeds.ivf_index, index, {"i/index.faiss": ANY}, seal_index),
)  # fmt: skip


def missing(reader: Reader) -> str:
    """The package that a reader needs and that is not installed, or ""."""
    return next((name for name in reader.needs if importlib.util.find_spec(name) is None), "")
