"""The reference that says how unusual the distance of two albums is, from photos of places, birds and objects.

    LIKEWISE_DATA=… python tools/fit_reference.py --cells FOLDER

Writes weights/sets-reference.json, and docs/results/sets-scale.json: how well it holds on a collection left out.
An album is a run of photos that follow one another: of a path (campus, nordland, kudamm), of cameras (webcams), of a
species of birds, of a class of objects. Unrelated are two of one collection out of each other's sight, of other
cameras, species or classes: nearer than those of two collections, and what an archive of one kind is made of. Related
are two of the same path or cameras in another season or year, or two that follow each other in a species or class.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from likewise import media
from likewise.nn.features import extract
from likewise.papers import Record, data_folder
from likewise.papers.life.places import APART, SHIFTED
from likewise.papers.places.copies import scenes
from likewise.sets import compare, scale, signature

COLLECTIONS = ("campus", "nordland", "webcams", "kudamm", "birds", "objects")
BIRDS = 4
"""Each fourth species."""
SIZES = (2, 4, 8, 16, 32, 64, 128)
CHECKED = ((3, 3), (6, 6), (5, 12), (12, 24), (3, 30), (24, 24))
"""Sizes at which what ships is checked: none of those that it keeps, so that what lies between them is checked too."""
OWN = 40
"""Pairs that are checked in an index of their own collection."""
LEVELS = (0.5, 1, 2, 3.5, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 90, 99)
RESULT = Path(__file__).parents[1] / "docs" / "results" / "sets-scale.json"

Run = tuple[int, int, int]
"""Of a sequence, from a place, so many."""


@dataclass(eq=False)
class Photos:
    """The embeddings of a collection; of each photo what it shows, and where along that; and the sequences of them."""

    name: str
    rows: Any
    thing: Any
    at: Any
    sequences: list[Any]
    kept: dict[Run, Any] = field(default_factory=dict)

    def members(self, run: Run) -> Any:
        return self.sequences[run[0]][run[1] : run[1] + run[2]]

    def signed(self, run: Run) -> Any:
        if run not in self.kept:
            self.kept[run] = signature(self.rows[self.members(run)])
        return self.kept[run]

    def runs(self, n: int) -> list[Run]:
        step = max(1, n // 4)
        return [(k, i, n) for k, s in enumerate(self.sequences) for i in range(0, len(s) - n + 1, step)]

    def unrelated(self, a: Run, b: Run) -> bool:
        one, two = self.members(a), self.members(b)
        other = self.thing[one[0]] != self.thing[two[0]]
        return bool(other or np.abs(self.at[one][:, None] - self.at[two]).min() >= 1)

    def beside(self, a: Run, n: int) -> Run | None:
        """n photos that show what a run shows: the next of a class, or those of the other season or year."""
        if self.name in ("birds", "objects"):
            return (a[0], a[1] + a[2], n) if a[1] + a[2] + n <= len(self.sequences[a[0]]) else None
        other, middle = 1 - a[0], self.at[self.members(a)].mean()
        runs = [(other, i, n) for i in range(len(self.sequences[other]) - n + 1)]
        off = [abs(self.at[self.members(run)].mean() - middle) for run in runs]
        # half a camera, two photos along a path: as far as what is of one place
        most = 0.5 if self.name == "webcams" else 2 / APART[self.name]
        return runs[int(np.argmin(off))] if off and min(off) <= most else None

    def drawn(self, m: int, n: int, count: int, *, related: bool) -> list[tuple[Run, Run]]:
        """Pairs of runs of m and of n photos; fewer where there are hardly any."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name} {m} {n} {related}".encode()))
        ones, twos, pairs = self.runs(m), self.runs(n), list[tuple[Run, Run]]()
        for _ in range(40 * count if ones and twos else 0):
            a, b = ones[rng.integers(len(ones))], twos[rng.integers(len(twos))]
            if related:
                found = self.beside(a, n)
                pairs += [(a, found)] if found else []
            elif a != b and self.unrelated(a, b):
                pairs.append((a, b))
            if len(pairs) == count:
                break
        return pairs

    def ratios(self, m: int, n: int, count: int, *, related: bool = False) -> Any:
        """Their distances in units of the spread within them."""
        signed = [(self.signed(a), self.signed(b)) for a, b in self.drawn(m, n, count, related=related)]
        return np.array([scale.ratio(compare(p, q).distance, p, q) for p, q in signed])

    def among_own(self, m: int, n: int, count: int, *, related: bool) -> list[float]:
        """Percentiles of pairs of runs in an index of the collection itself, the folders of the pair left out."""
        names = [f"{k}/{i:05d}" for k, sequence in enumerate(self.sequences) for i in range(len(sequence))]
        if self.name not in ("birds", "objects"):  # one folder, of one season
            names = [name for name in names if name.startswith("0/")]
        found = list[float]()
        for one, two in self.drawn(m, n, count, related=related):
            out = {f"{k}/{i:05d}" for k, first, size in (one, two) for i in range(first, first + size)}
            albums, _ = scale.albums(names, m, n, leave_out=out)
            runs = [[(int(x[0][:-6]), int(x[0][-5:]), len(x)) for x in album] for album in albums]
            pairs = [(self.signed(runs[i][0]), self.signed(runs[j][1])) for i, j in scale.pairs(len(runs))]
            if not pairs:
                return []
            others = [scale.ratio(compare(p, q).distance, p, q) for p, q in pairs]
            p, q = self.signed(one), self.signed(two)
            found.append(scale.among(scale.ratio(compare(p, q).distance, p, q), others, "").percentile or 0.0)
        return found


def photos(data: Path, name: str, cells: Path | None) -> Photos:
    """A collection, embedded, or as it is in the cells."""
    if name == "birds":
        files = [f for folder in sorted((data / "cub200-232").iterdir())[::BIRDS] for f in sorted(folder.iterdir())]
    elif name == "objects":
        files = sorted((data / "eth80").glob("*/*/*"))
    else:
        files = sorted((data / "places" / name).glob("*/*.jpg"))
    names = [f.relative_to(data).as_posix() for f in files]
    kept = None if cells is None else cells / f"{name}-{len(names)}.npy"
    if kept is not None and kept.is_file():
        rows = media.load_arrays(kept)["arr_0"]
    else:
        rows = extract([str(f) for f in files]).rows
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, rows)
    where = scenes(data, names)
    if name in ("birds", "objects"):
        labels = [x.split("/")[1] for x in names]
        at = np.zeros(len(names))
    else:
        labels, at = [name] * len(names), np.array([where[x][1] for x in names])
    known = [True] * len(names)
    if name == "kudamm":  # queries that have no reference have no place along the street either
        lines = (data / "places/kudamm/truth.csv").read_text(encoding="utf-8").split()[1:]
        there = {int(line.split(",")[0]) - SHIFTED for line in lines}
        known = ["/reference/" in x or int(Path(x).stem) in there for x in names]
    parents = [x.split("/")[1] if name in ("birds", "objects") else x.rpartition("/")[0] for x in names]
    sequences = [np.array([i for i, x in enumerate(parents) if x == p and known[i]]) for p in sorted(set(parents))]
    kinds = sorted(set(labels))
    return Photos(name, rows.astype(np.float64), np.array([kinds.index(x) for x in labels]), at, sequences)


Cells = dict[tuple[int, int], Any]


def nearest(cells: Sequence[Cells]) -> Cells:
    """Of each pair of sizes and each level the nearest quantile of the collections that reach these sizes."""
    table = {}
    for at in combinations_with_replacement(SIZES, 2):
        some = [np.quantile(c[at], np.array(LEVELS) / 100) for c in cells if len(c[at]) >= 50]
        table[at] = np.minimum.reduce(some)
    return table


def written(table: Cells, pairs: int) -> str:
    """As it ships."""
    about = {
        "reference": f"{pairs:,} pairs of places, birds and objects, the nearest of {len(COLLECTIONS)} collections",
        "sizes": SIZES,
        "levels": LEVELS,
    }
    rows = ",\n  ".join(json.dumps([round(float(q), 3) for q in row]) for row in table.values())
    return f'{json.dumps(about, indent=1)[:-2]},\n "quantiles": [\n  {rows}\n ]\n}}\n'


def shares(values: Sequence[float], at: float) -> float:
    return round(float(np.mean(np.asarray(values) <= at)), 3)


@click.command()
@click.option("--data", default="", help="the folder of the data; by default $LIKEWISE_DATA")
@click.option("--cells", default="", help="a folder for what was measured, so that a run resumes")
@click.option("--pairs", default=200, help="pairs of each collection and each two sizes")
def main(data: str, cells: str, pairs: int) -> None:
    """Fit, write and check."""
    torch.set_num_threads(1)
    root, folder = data_folder(data), Path(cells) if cells else None
    ratios: dict[str, Cells] = {}
    tests: dict[str, dict[str, Cells]] = {}
    owned: dict[str, dict[str, Any]] = {}
    for name in COLLECTIONS:
        file = folder / f"{name}-ratios-{pairs}.npz" if folder else None
        every = [("u", m, n) for m, n in (*combinations_with_replacement(SIZES, 2), *CHECKED)]
        every += [("r", m, n) for m, n in CHECKED]
        if file is not None and file.is_file():
            measured = media.load_arrays(file)
        else:
            some = photos(root, name, folder)
            measured = {f"{k} {m} {n}": some.ratios(m, n, pairs, related=k == "r") for k, m, n in every}
            measured |= {f"own {k}": np.array(some.among_own(6, 6, OWN, related=k == "r")) for k in "ur"}
            if file is not None:
                np.savez(file, **measured)
        click.echo(f"{name}: {sum(map(len, measured.values())):,} pairs")
        ratios[name] = {(m, n): measured[f"u {m} {n}"] for k, m, n in every if k == "u" and (m, n) not in CHECKED}
        owned[name] = {k: measured[f"own {k}"] for k in "ur"}
        tests[name] = {k: {at: measured[f"{k} {at[0]} {at[1]}"] for at in CHECKED} for k in "ur"}
    rows = []
    for name in COLLECTIONS:
        kept = scale.read(written(nearest([c for other, c in ratios.items() if other != name]), 0))
        by_size = {
            k: {at: [scale.shipped(float(x), at, kept=kept).percentile or 0.0 for x in v] for at, v in cells.items()}
            for k, cells in tests[name].items()
        }
        said = {k: [x for some in cells.values() for x in some] for k, cells in by_size.items()}
        rows.append(
            {
                "left out": name,
                "unrelated pairs": len(said["u"]),
                "unrelated ≤ 5": shares(said["u"], 5),
                "worst size": max(shares(some, 5) for some in by_size["u"].values()),
                "unrelated ≤ 25": shares(said["u"], 25),
                "unrelated ≤ 50": shares(said["u"], 50),
                "related pairs": len(said["r"]),
                "related ≤ 5": shares(said["r"], 5),
                "related ≤ 25": shares(said["r"], 25),
                "6 photos: related ≤ 5": shares(by_size["r"][6, 6], 5),
            }
        )
        if len(owned[name]["u"]):
            rows[-1] |= {
                "own index, 6: unrelated ≤ 5": shares(owned[name]["u"], 5),
                "own index, 6: related ≤ 5": shares(owned[name]["r"], 5),
            }
        click.echo(str(rows[-1]))
    count = sum(len(values) for c in ratios.values() for values in c.values())
    media.write_text(scale.WEIGHTS, written(nearest(list(ratios.values())), count))
    note = (
        "Share of pairs at percentiles up to 5, 25 and 50, by a reference of the other collections; albums of 3 to 30 "
        "photos, up to 1,200 pairs each; worst of six sizes. "
        "Own index: of the collection itself, where it has enough albums; of 6 photos, "
        "40 pairs."
    )
    columns = list(dict.fromkeys(name for row in rows for name in row if not name.endswith("pairs")))
    record = Record(columns, rows, note)
    command = "python tools/fit_reference.py --cells cells"
    media.write_text(
        RESULT, json.dumps(record.to_dict("sets-scale", command), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    )
    click.echo(f"{scale.WEIGHTS.stat().st_size:,} bytes; {count:,} pairs")


if __name__ == "__main__":
    main()
