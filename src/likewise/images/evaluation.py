"""evaluate(model, dataset): what a model finds among pictures whose classes are known, and what it takes for what."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import numeric
from likewise.errors import InputError, ShapeError
from likewise.images import embedding, metrics
from likewise.images.ranks import Floats, Index, Rows, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from likewise.images.compare import Embeds
    from likewise.images.dataset import Dataset

SHOWN = 8
"""Queries that are drawn, and how many neighbours of each."""


def evaluate(
    model: Embeds,
    dataset: Dataset | str | os.PathLike[str],
    *,
    ks: Iterable[int] = metrics.KS,
    nmi: bool = True,
    batch_size: int = 32,
    progress: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """R@k for each k, mAP@R, spectral decay, and with `nmi` NMI and F1 of k-means, of a model on labelled pictures.

    `model` is anything whose `embed` gives a row a picture; `dataset` a Dataset, or a folder that `layouts.read` takes.
    Pictures that cannot be read are left out and named under "skipped". A picture that is alone in its class counts as
    a miss; "lone" says how many there are.
    """
    return examine(model, dataset, ks=ks, nmi=nmi, batch_size=batch_size, progress=progress, seed=seed).figures


def examine(
    model: Embeds,
    dataset: Dataset | str | os.PathLike[str],
    *,
    ks: Iterable[int] = metrics.KS,
    nmi: bool = True,
    batch_size: int = 32,
    progress: bool = False,
    seed: int = 0,
) -> Evaluation:
    """The same as `evaluate`, with what stands behind the figures: rows, neighbours, classes, confusions, pictures."""
    wanted = metrics.checked(ks)
    pictures = _read(dataset)
    rows, read, skipped = embedded(model, pictures, batch_size=batch_size, progress=progress)
    if len(read) < 2:
        raise InputError(f"dataset: {len(read)} of {len(pictures)} pictures could be read; expected at least two")
    kept = pictures if len(read) == len(pictures) else pictures.subset(read)
    hits = metrics.hits_at_k(rows, kept.labels, {1, *wanted})
    figures = {
        "model": str(getattr(model, "name", type(model).__name__)),
        "dataset": kept.name,
        "n": len(kept),
        "classes": len(np.unique(kept.labels)),
        "dim": int(rows.shape[1]),
        **{f"R@{k}": metrics.mean_of(hits[k], "miss") for k in wanted},
        "map_at_r": metrics.map_at_r(rows, kept.labels),
        **(_clustering(rows, kept.labels, seed) if nmi else {}),
        "spectral_decay": metrics.spectral_decay(rows),
        "lone": int(np.isnan(hits[1]).sum()),
        "skipped": skipped,
    }
    return Evaluation(figures, kept, rows, hits[1], seed)


def embedded(
    model: Embeds, dataset: Dataset, *, batch_size: int = 32, progress: bool = False
) -> tuple[Rows, Index, list[dict[str, str]]]:
    """Unit rows of the pictures that can be read, their places in the data set, and name and reason of the others.

    A model that is not an embedder of ours (it has no `skipped`) is given arrays, as everywhere.
    """
    if not hasattr(model, "skipped"):
        return _embedded_arrays(model, dataset)
    wanted = {"batch_size": batch_size, "progress": progress, "on_error": "skip"}
    taken = inspect.signature(model.embed).parameters
    rest = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    options = {name: value for name, value in wanted.items() if rest or name in taken}
    rows = np.asarray(model.embed(dataset.items, **options))
    skipped = tuple(getattr(model, "skipped", ())) if "on_error" in options else ()
    read = np.delete(np.arange(len(dataset)), [s.index for s in skipped])
    if rows.ndim != 2 or len(rows) != len(read):
        raise ShapeError(f"model: its embed gave shape {rows.shape} for {len(read)} pictures; expected a row each")
    return unit(rows, "model") if len(rows) else rows, read, [{"name": s.name, "reason": s.reason} for s in skipped]


def _embedded_arrays(model: Embeds, dataset: Dataset) -> tuple[Rows, Index, list[dict[str, str]]]:
    """The same with pictures that are decoded here, some at a time."""
    rows, read, skipped = list[Rows](), list[int](), list[dict[str, str]]()
    for start in range(0, len(dataset), embedding.CHUNK):
        part = dataset.items[start : start + embedding.CHUNK]
        arrays, bad = embedding.decoded(part)
        skipped += [{"name": s.name, "reason": s.reason} for s in bad]
        read += [start + i for i in embedding.readable(len(part), bad)]
        if arrays:
            rows.append(embedding.unit_rows(model.embed(arrays), len(arrays)))
    whole = np.concatenate(rows) if rows else np.empty((0, 0), np.float32)
    return whole, np.asarray(read, dtype=np.int64), skipped


def _read(dataset: Dataset | str | os.PathLike[str]) -> Dataset:
    from likewise.images import layouts

    if isinstance(dataset, str | os.PathLike):
        return layouts.read(dataset)
    if not all(hasattr(dataset, name) for name in ("items", "labels", "classes", "subset")):
        raise InputError(f"dataset: expected a Dataset or the path of a folder, got {type(dataset).__name__}")
    return dataset


def _clustering(rows: Rows, labels: Index, seed: int) -> dict[str, float]:
    found = metrics.clusters(rows, len(np.unique(labels)), seed=seed)
    return {"nmi": metrics.nmi(rows, labels, found=found), "f1": metrics.f1(rows, labels, found=found)}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a model made of labelled pictures: `figures` as `evaluate` gives them, and the reasons.

    `dataset` holds the pictures that could be read, `rows` (n, dim) their embeddings, `hits` (n,) the R@1 of each (NaN
    where no other picture is of its class).
    """

    figures: dict[str, Any]
    dataset: Dataset
    rows: Rows
    hits: Floats
    seed: int = 0

    def __repr__(self) -> str:
        first = next(name for name in self.figures if name.startswith("R@"))
        return f"Evaluation({self.figures['dataset']}, {first} {self.figures[first]:.3f}, {self.figures['model']})"

    @cached_property
    def spectrum(self) -> Floats:
        """Normalised singular values of the rows, descending."""
        return metrics.spectrum(self.rows)

    @cached_property
    def nearest(self) -> Index:
        """The places (n, ≤ 8) of the nearest other pictures of each, nearest first."""
        return numeric.nearest(self.rows, k=min(SHOWN, len(self.rows) - 1))[1]

    def per_class(self) -> list[dict[str, Any]]:
        """R@1 of each class that has two pictures or more, the worst first."""
        counts = self.dataset.counts
        found = np.bincount(self.dataset.labels, np.nan_to_num(self.hits), len(counts))
        rows = [
            {"class": name, "n": int(n), "R@1": float(hits / n)}
            for name, n, hits in zip(self.dataset.classes, counts, found, strict=True)
            if n > 1
        ]
        return sorted(rows, key=lambda row: (row["R@1"], -row["n"], row["class"]))

    def confusions(self, most: int = 20) -> list[dict[str, Any]]:
        """Which class is most often taken for which: the nearest picture of a picture is of another class.

        `share` is the part of the class's pictures with which this happens.
        """
        labels, classes, counts = self.dataset.labels, self.dataset.classes, self.dataset.counts
        pairs = np.stack([labels, labels[self.nearest[:, 0]]], axis=1)
        wrong, times = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0, return_counts=True)
        rows = [
            {"class": classes[a], "taken for": classes[b], "n": int(n), "share": float(n / counts[a])}
            for (a, b), n in zip(wrong, times, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row["n"], -row["share"], row["class"], row["taken for"]))[:most]

    def queries(self, most: int | None = None) -> Index:
        """Pictures (by default 8) drawn at random by the seed, each of another class as far as there are so many."""
        order = np.random.default_rng(self.seed).permutation(len(self.rows))
        order = order[~np.isnan(self.hits[order])]
        places = _turns(self.dataset.labels[order])
        return np.asarray(order[np.argsort(places, kind="stable")][: most or SHOWN], dtype=np.int64)

    def plot_rankings(self) -> Figure:
        """Some pictures, drawn at random, each with its nearest: the right ones framed green, the wrong ones red."""
        from likewise import plot

        chosen, labels = self.queries(), self.dataset.labels
        near = self.nearest[chosen]
        names = [self.dataset.classes[c] for c in labels[chosen]]
        return plot.ranking(
            [self.dataset.items[i] for i in chosen],
            [[self.dataset.items[j] for j in row] for row in near],
            right=(labels[near] == labels[chosen][:, None]).tolist(),
            names=names,
            captions=[[self.dataset.classes[labels[j]] for j in row] for row in near],
            title=f"{self.figures['dataset']}, {self.figures['model']}: pictures drawn at random and their nearest",
        )

    def plot_spectrum(self) -> Figure:
        """The spectrum in log10, beside that of an embedding that uses all directions alike [DiVA Fig. 5]."""
        from likewise import plot

        values = self.spectrum[self.spectrum > 0]
        decay = self.figures["spectral_decay"]
        return plot.spectrum(
            {str(self.figures["model"]): np.log10(values), "uniform": np.full(len(values), -np.log10(len(values)))},
            title=f"{self.figures['dataset']}: spectral decay {decay:.3f}",
            ylabel="log10 of a singular value's share",
        )


def _turns(labels: Index) -> Index:
    """For each entry how many equal ones stand before it."""
    order = np.argsort(labels, kind="stable")
    turns = np.empty(len(labels), dtype=np.int64)
    turns[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return turns
