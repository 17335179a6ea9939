"""How well: accuracy of the learned distances against baselines, on real data.

    python benchmarks/quality.py sets            eth80, JapaneseVowels, kinfacew2: every method, written to results/
    python benchmarks/quality.py sets --quick    two resamples and the four set methods, printed only
    python benchmarks/quality.py held-out        eth80 on the objects that no default was chosen on
    python benchmarks/quality.py distributions   the experiments on polarity sampling: see quality_distributions.py
    python benchmarks/quality.py images          DiVA against the margin baseline: see quality_images.py
    python benchmarks/quality.py pixels          flow, matches and losses: see quality_pixels.py
    python benchmarks/quality.py search          known places among thousands of photos: see quality_search.py

eth80: grey 20 × 20 pixels → PCA 50, five objects a class to train, the others to test, drawn `--resamples` times.
JapaneseVowels: the official split, frames as points. kinfacew2: the official five folds, 1 − EER, mean of the four
relations; a face is the paper's set of two points, block-LBP and HOG, each → PCA 100 of unit length, and the vector
methods see the two side by side. Learned distances have their defaults, with the test rule chosen by inner folds of the
training part.

Each (data set, method) is a cell, kept in `--cells` under a digest of the sources: a run that was stopped goes on, and
changed code measures anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import click
import numpy as np

import likewise
from likewise.errors import InputError
from likewise.media import write_text
from likewise.papers.mlml import protocols
from likewise.papers.mlml import rivals as baselines
from likewise.sets import WassersteinLMNN, data, features
from quality_distributions import distributions
from quality_images import images
from quality_pixels import pixels
from quality_search import search
from record import record

Methods = dict[str, Callable[[], Any]]


def methods(vectors: Callable[..., Any]) -> Methods:
    """Every method by name; vector methods see `vectors` of a set."""

    def of(model: Any) -> Callable[[], Any]:
        return lambda: baselines.OfVectors(model(), vectors)

    return {
        "Euclid": of(baselines.Euclid),
        "Mahalanobis": of(baselines.Mahalanobis),
        "KISSME": of(baselines.KISSME),
        "LDML": of(baselines.LDML),
        "EMD": lambda: baselines.Unlearned("emd"),
        "Sinkhorn, unlearned": lambda: baselines.Unlearned("sinkhorn"),
        "global": lambda: WassersteinLMNN(multilevel=False, rule="auto"),
        "multi-level": lambda: WassersteinLMNN(rule="auto"),
    }


QUICK = ("Euclid", "Sinkhorn, unlearned", "global", "multi-level")


@dataclass(frozen=True)
class Collection:
    """A data set: its name, the figure that counts, and how to measure a method on it."""

    name: str
    figure: str
    measure: Callable[[Any], protocols.Result]
    vectors: Callable[..., Any]


def eth80(folder: Path, resamples: int, seed: int) -> Collection:
    """ETH-80: class/object/views; resamples, since there is no official split."""
    found = data.collection(folder / "eth80")
    sets = found.signatures(features.describe_with(features.grey_pixels), k=None)
    dataset = data.Sets(tuple(sets), np.asarray(found.labels))

    def measure(method: Any) -> protocols.Result:
        return protocols.image_sets(dataset, method, train_objects=5, resamples=resamples, seed=seed, pca=50)

    return Collection("eth80", "accuracy", measure, baselines.mean_vectors)


def untuned(folder: Path, resamples: int, seed: int) -> tuple[Collection, Collection]:
    """ETH-80 by object number: trained on the odd and tested on the even; three to two among the even, resampled."""
    found = data.collection(folder / "eth80")
    sets = found.signatures(features.describe_with(features.grey_pixels), k=None)
    number = np.array([int(Path(str(s.names[0])).parent.name) for s in sets if s.names is not None])
    if len(number) != len(sets):
        raise InputError("eth80: the pictures have no names to tell their objects by")

    def part(rows: Any) -> data.Sets:
        return data.Sets(tuple(sets[i] for i in rows), np.asarray(found.labels)[rows])

    odd, even = part(np.flatnonzero(number % 2 == 1)), part(np.flatnonzero(number % 2 == 0))

    def across(method: Any) -> protocols.Result:
        return protocols.classification(odd, even, method, pca=50)

    def within(method: Any) -> protocols.Result:
        return protocols.image_sets(even, method, train_objects=3, resamples=resamples, seed=seed, pca=50)

    return (
        Collection("odd → even", "accuracy", across, baselines.mean_vectors),
        Collection("even, 3 → 2", "accuracy", within, baselines.mean_vectors),
    )


def vowels(folder: Path, resamples: int, seed: int) -> Collection:
    """JapaneseVowels from the aeon wheel: 270 to train, 370 to test."""
    both = data.japanese_vowels()

    def measure(method: Any) -> protocols.Result:
        return protocols.classification(both.train, both.test, method)

    return Collection("JapaneseVowels", "accuracy", measure, baselines.mean_vectors)


def kin(folder: Path, resamples: int, seed: int) -> Collection:
    """KinFaceW-II: the official folds; a face is a point of LBP and a point of HOG, as in the paper."""
    dataset = data.kinfacew(folder / "kinfacew2")
    lbp = features.describe_with(features.block_lbp, root=True)(dataset.paths)
    hog = features.describe_with(features.block_hog)(dataset.paths)

    def measure(method: Any) -> protocols.Result:
        return protocols.kinship(dataset, method, (lbp, hog), pca=100, unit=True, seed=seed)

    return Collection("kinfacew2", "mean", measure, baselines.flat_vectors)


COLLECTIONS: dict[str, Callable[[Path, int, int], Collection]] = {
    "eth80": eth80,
    "JapaneseVowels": vowels,
    "kinfacew2": kin,
}


def digest() -> str:
    """A digest of the sources that a figure depends on: this file, the level and the mathematics."""
    home = Path(likewise.__file__).parent
    files = [Path(__file__), *sorted((home / "sets").glob("*.py")), *sorted((home / "core").glob("*.py"))]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


def cell(folder: Path, made: Collection, name: str, method: Callable[[], Any], key: str) -> dict[str, Any]:
    """One figure, from the folder of cells if it was measured before with the same sources and settings."""
    file = folder / f"{made.name}-{name.replace(', ', '-')}-{key}.json"
    if file.is_file():
        return dict(json.loads(file.read_text(encoding="utf-8")))
    began = time.perf_counter()
    result = made.measure(method())
    seconds = round(time.perf_counter() - began, 1)
    error = result.se(made.figure)
    found = {
        "value": result.mean(made.figure),
        "se": None if error != error else error,
        "folds": list(result.figures[made.figure]),
        "of": result.folds,
        "seconds": seconds,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(found))
    return found


def rows_of(cells: dict[tuple[str, str], dict[str, Any]], chosen: list[str]) -> list[dict[str, Any]]:
    """The table: a row a method, a column and its standard error a data set, and the mean over data sets."""
    rows = []
    for name in dict.fromkeys(method for _, method in cells):
        row: dict[str, Any] = {"method": name}
        for dataset in chosen:
            found = cells[dataset, name]
            row[dataset] = round(found["value"], 4)
            if found["se"] is not None:
                row[f"{dataset} ±"] = round(found["se"], 4)
            row[f"{dataset} seconds"] = found["seconds"]
        row["mean"] = round(sum(row[dataset] for dataset in chosen) / len(chosen), 4)
        rows.append(row)
    return rows


@click.group()
def main() -> None:
    """Accuracy on real data."""


@main.command()
@click.option("--data", "folder", envvar="LIKEWISE_DATA", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, type=click.Choice(list(COLLECTIONS)), help="some of the data sets")
@click.option("--method", "named", multiple=True, help="some of the methods")
@click.option("--resamples", default=10, show_default=True, help="drawn splits of eth80")
@click.option("--seed", default=0, show_default=True)
@click.option("--quick", is_flag=True, help="two resamples, four methods, nothing written to results/")
@click.option("--cells", type=click.Path(path_type=Path), default=Path.home() / ".cache" / "likewise" / "quality")
def sets(
    folder: Path, only: tuple[str, ...], named: tuple[str, ...], resamples: int, seed: int, quick: bool, cells: Path
) -> None:
    """The table of the level sets."""
    chosen = list(only) or ([n for n in COLLECTIONS if n != "kinfacew2"] if quick else list(COLLECTIONS))
    resamples = 2 if quick else resamples
    key = f"{digest()}-{resamples}-{seed}"
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for dataset in chosen:
        made = COLLECTIONS[dataset](folder, resamples, seed)
        every = methods(made.vectors)
        unknown = set(named) - set(every)
        if unknown:
            raise InputError(f"method: expected some of {', '.join(every)}, got {sorted(unknown)[0]!r}")
        for name in named or (QUICK if quick else every):
            found[dataset, name] = one = cell(cells, made, name, every[name], key)
            error = "" if one["se"] is None else f" ± {one['se']:.3f}"
            click.echo(f"{dataset:16} {name:22} {one['value']:.3f}{error}  {one['seconds']:.0f} s")
    rows = rows_of(found, chosen)
    if quick or only or named:
        return
    columns = ["method"]
    for dataset in chosen:
        columns += [dataset] + ([f"{dataset} ±"] if f"{dataset} ±" in rows[0] else [])
    note = (
        f"eth80: mean ± s.e. over {resamples} resamples; JapaneseVowels: the official split; "
        "kinfacew2: 1 − EER, mean ± s.e. over the official five folds"
    )
    settings = "" if (resamples, seed) == (10, 0) else f" --resamples {resamples} --seed {seed}"
    path = record("quality-sets", [*columns, "mean"], rows, f"python benchmarks/quality.py sets{settings}", note)
    click.echo(f"written: {path}")


@main.command("held-out")
@click.option("--data", "folder", envvar="LIKEWISE_DATA", type=click.Path(path_type=Path), required=True)
@click.option("--resamples", default=10, show_default=True, help="drawn splits of the even-numbered objects")
@click.option("--seed", default=0, show_default=True)
@click.option("--cells", type=click.Path(path_type=Path), default=Path.home() / ".cache" / "likewise" / "quality")
def held_out(folder: Path, resamples: int, seed: int, cells: Path) -> None:
    """eth80 on the objects that no default was chosen on."""
    key, found = f"{digest()}-{resamples}-{seed}", {}
    made = untuned(folder, resamples, seed)
    for name in ("Mahalanobis", "Sinkhorn, unlearned", "global", "multi-level"):
        for part in made:
            found[part.name, name] = one = cell(cells, part, name, methods(part.vectors)[name], key)
            click.echo(f"{part.name:16} {name:22} {one['value']:.3f}  {one['seconds']:.0f} s")
    rows = rows_of(found, [part.name for part in made])
    note = f"odd → even: one split, 40 test sets; even, 3 → 2: mean ± s.e. over {resamples} resamples of 16 test sets"
    settings = "" if (resamples, seed) == (10, 0) else f" --resamples {resamples} --seed {seed}"
    columns = ["method", "odd → even", "even, 3 → 2", "even, 3 → 2 ±"]
    path = record("quality-held-out", columns, rows, f"python benchmarks/quality.py held-out{settings}", note)
    click.echo(f"written: {path}")


main.add_command(distributions)
main.add_command(images)
main.add_command(pixels)
main.add_command(search)


if __name__ == "__main__":
    main()
