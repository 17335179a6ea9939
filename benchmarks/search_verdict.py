"""Fit the verdict of a search: the probability that two pictures show the same, from what was measured of them.

    python tools/training_photos.py photos/            freely licensed photos out of Debian's packages
    python benchmarks/search_verdict.py photos/             places made of them, searched, verified, and the fit

Every photo gives places in a gallery and two queries (another view, another light: benchmarks/places.py); every other
query has its answer taken out. What is fitted on are the five best candidates of each search, so a probability means:
of such candidates, how many show the same. Writes src/likewise/weights/search-verdict.json, with figures on photos that
were held out of the fit.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

import places
from likewise import media
from likewise.search import Collection, Verifier, duplicates
from likewise.search.verdict import WEIGHTS, measured
from record import commit

TOP = 5
PARTS = {
    "distance": (0,),
    "transport": (0, 1),
    "distance+evidence": (0, 2, 3, 4),
    "transport+evidence": (0, 1, 2, 3, 4),
    "matches": (2, 3),
}
"""Which of (distance, transport, inliers beyond chance, their share, home) each part of the model sees."""
SIGNS = np.array([-1, -1, 1, 1, 1])
"""How each must act: nearer, and more evidence, never make it less probable."""


TEXTURES = re.compile(r"ufoai")
"""A package of textures and carpets: their parts repeat, and a part that repeats is the same and is not."""
APART = 0.6
"""Photos whose embeddings are nearer than this are taken for pictures of one thing, and only the first is used."""


def distinct(photos: list[Path]) -> list[Path]:
    """The photos that are not like one before them: packages share wallpapers, by day and by night."""
    from likewise.images import default

    rows = default().embed(photos)
    kept: list[int] = []
    for i, row in enumerate(rows):
        if not kept or np.linalg.norm(rows[kept] - row, axis=1).min() >= APART:
            kept.append(i)
    return [photos[i] for i in kept]


def table(photos: list[Path], folder: Path, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """x (n, 5), whether both show the same (n,), and the photo each candidate's query is of (n,)."""
    queries = places.made(photos, folder, seed=seed, source="made", each=2)
    rows, same, group = [], [], []
    with Collection.build(folder / "gallery", folder / "index", progress=True) as collection:
        for number, query in enumerate(queries):
            found = collection.search(query.path, TOP + 1, verify=0)
            hits = [h for h in found.hits if number % 2 == 0 or Path(h.path) not in query.right][:TOP]
            look = Verifier(query.path)
            for hit in hits:
                if Path(hit.path) in query.seen or copied(collection, query, hit.path):
                    continue  # a little of it is seen; or textures repeat, and another part of the photo is a copy
                rows.append(measured(hit.distance, hit.local_distance, look(hit.path))[1])
                same.append(Path(hit.path) in query.right)
                group.append(int(query.path.stem.partition("-")[0]))
            if number % 20 == 0:
                click.echo(f"{number} of {len(queries)} queries", err=True)
    return np.asarray(rows), np.asarray(same), np.asarray(group)


def copied(collection: Collection, query: places.Query, path: str) -> bool:
    """Whether a candidate is a copy of a picture that shows the query's place, and is not such a picture itself."""
    if Path(path) in query.right:
        return False
    return any(duplicates.copies(collection, str(right), path) for right in query.right)


def fitted(x: NDArray[Any], same: NDArray[Any], columns: tuple[int, ...]) -> list[float]:
    """Intercept and weights; a weight of the wrong sign is set to zero and the rest fitted again."""
    kept = list(columns)
    while True:
        scale = x[:, kept].std(0) + 1e-9
        model = LogisticRegression(C=10.0, max_iter=2000).fit(x[:, kept] / scale, same)
        weights = model.coef_[0] / scale
        wrong = [c for c, w in zip(kept, weights, strict=True) if w * SIGNS[c] < 0]
        if not wrong:
            by_column = dict(zip(kept, weights, strict=True))
            return [float(model.intercept_[0]), *(float(by_column.get(c, 0.0)) for c in columns)]
        kept = [c for c in kept if c not in wrong]


def probabilities(x: NDArray[Any], columns: tuple[int, ...], weights: list[float]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-(weights[0] + x[:, list(columns)] @ np.asarray(weights[1:])))))


def held_out(x: NDArray[Any], same: NDArray[Any], group: NDArray[Any], columns: tuple[int, ...]) -> dict[str, Any]:
    """Brier score, calibration error over ten bins, and what the verdicts are worth, on photos left out of the fit."""
    p = np.empty(len(x))
    for train, test in GroupKFold(5).split(x, same, group):
        p[test] = probabilities(x[test], columns, fitted(x[train], same[train], columns))
    bins = np.minimum((p * 10).astype(int), 9)
    gaps = [abs(p[bins == b].mean() - same[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    sure, out = p >= 0.9, p <= 0.1
    return {
        "brier": float(((p - same) ** 2).mean()),
        "calibration error": float(sum(gaps)),
        "said same": float(sure.mean()),
        "right when same": float(same[sure].mean()) if sure.any() else None,
        "said different": float(out.mean()),
        "right when different": float((~same[out]).mean()) if out.any() else None,
    }


@click.command()
@click.argument("photos", type=click.Path(path_type=Path))
@click.option("--most", default=243, show_default=True, help="photos that are used")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--table", "kept", type=click.Path(path_type=Path), help="keep the measured candidates here, or take them"
)
@click.option("--out", default=WEIGHTS, type=click.Path(path_type=Path), show_default=True)
def main(photos: Path, most: int, seed: int, kept: Path | None, out: Path) -> None:
    """Make places, search, verify, fit."""
    if kept is not None and kept.exists():
        arrays = media.load_arrays(kept)
        x, same, group = arrays["x"], arrays["same"], arrays["group"]
    else:
        files = distinct([p for p in media.images(photos) if not TEXTURES.match(p.name)])
        chosen = [files[i] for i in np.random.default_rng(seed).permutation(len(files))[:most]]
        with tempfile.TemporaryDirectory() as scratch:
            x, same, group = table(chosen, Path(scratch), seed)
        if kept is not None:
            np.savez(kept, x=x, same=same, group=group)
    figures = {name: held_out(x, same, group, columns) for name, columns in PARTS.items()}
    said = {
        "parts": {name: fitted(x, same, columns) for name, columns in PARTS.items()},
        "candidates": len(x),
        "photos": len(np.unique(group)),
        "same": float(same.mean()),
        "held out": figures,
        "seed": seed,
        "commit": commit(),
    }
    media.write_text(out, json.dumps(said, indent=1) + "\n")
    for name, row in figures.items():
        click.echo(f"{name:20} " + "  ".join(f"{k} {v if v is None else round(v, 3)}" for k, v in row.items()))


if __name__ == "__main__":
    main()
