"""`likewise images evaluate`: how well a model finds pictures of the same class, and what it takes for what."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.images_search import model_at, with_model
from likewise.cli.images_train import LAYOUTS
from likewise.cli.terminal import check_writable, remark, result, tell_left_out, write_json
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.images.dataset import Dataset
    from likewise.images.evaluation import Evaluation

SPLITS = ("auto", "test", "train", "all")
WORST = 5
"""Classes and confusions that are printed; the JSON has more."""


@click.command()
@click.argument("data", type=click.Path())
@with_model
@click.option("--layout", default="auto", show_default=True, type=click.Choice(LAYOUTS), help="how DATA is laid out")
@click.option(
    "--split",
    default="auto",
    show_default=True,
    type=click.Choice(SPLITS),
    help="which classes; auto: test where DATA has such a part, else all",
)
@click.option("--ks", default="1,2,4,8", show_default=True, help="the k of R@k, with commas between")
@click.option("--nmi/--no-nmi", default=True, show_default=True, help="cluster, too: slow with thousands of classes")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="pictures at a time")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="of clusters and of drawn queries")
@click.option("--out", default="evaluate", show_default=True, type=click.Path(), help="folder for JSON and pictures")
@click.option("--json", "as_json", is_flag=True, help="print what stands in evaluate.json")
def evaluate(
    data: str,
    model: str | None,
    layout: str,
    split: str,
    ks: str,
    nmi: bool,
    batch_size: int,
    seed: int,
    out: str,
    as_json: bool,
) -> None:
    """Look every picture of DATA up among all others: is the nearest of the same class?

    DATA is a folder for each class, or a published data set (CUB200, CARS196, SOP, Omniglot). Pictures that cannot be
    read are named, counted and left out. Writes evaluate.json (figures, recall of each class, confusions),
    rankings.png (pictures drawn at random with their nearest, right ones green, wrong ones red) and spectrum.png.
    """
    from likewise.images.evaluation import examine

    wanted, folder = _ks(ks), Path(out)
    check_writable(folder)
    pictures, part = _part(data, layout, split)
    remark(f"{pictures}, {part} classes")
    found = examine(
        model_at(model), pictures, ks=wanted, nmi=nmi, batch_size=batch_size, progress=sys.stderr.isatty(), seed=seed
    )
    tell_left_out([(s["name"], s["reason"]) for s in found.figures["skipped"]])
    record = _record(found) | {"data": data, "split": part, "seed": seed}
    write_json(folder / "evaluate.json", record)
    _draw(found, folder)
    result(_words(record), record, as_json)
    remark(f"see {folder / 'rankings.png'} and {folder / 'spectrum.png'}")


def _ks(words: str) -> tuple[int, ...]:
    from likewise.images.metrics import checked

    parts = [w.strip() for w in words.split(",") if w.strip()]
    if not all(w.isdecimal() for w in parts):
        raise InputError(f"ks: expected whole numbers with commas between, such as 1,10,100, got {words!r}")
    return checked(int(w) for w in parts)


def _part(path: str, layout: str, split: str) -> tuple[Dataset, str]:
    """The pictures, and which part of the data set they are."""
    from likewise.images import layouts

    if split == "all":
        return layouts.read(path, layout), "all"
    if split == "auto":
        return layouts.unseen(path, layout)
    return layouts.read(path, layout, "train" if split == "train" else "test"), split


def _record(found: Evaluation) -> dict[str, Any]:
    """Everything measured as JSON holds it: an infinite decay is null."""
    figures = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.figures.items()}
    return {**figures, "per_class": found.per_class(), "confusions": found.confusions()}


def _draw(found: Evaluation, folder: Path) -> None:
    from likewise import plot

    plot.save(found.plot_rankings(), folder / "rankings.png")
    plot.save(found.plot_spectrum(), folder / "spectrum.png")


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(record: Mapping[str, Any]) -> str:
    """Figures in a line, then the classes that are found worst and the worst confusions."""
    head = f"{record['dataset']}: {record['n']:,} pictures of {record['classes']:,} classes, {record['model']}"
    lines = [head, *_columns(_figures(record))]
    worst = [(row["class"], f"{row['R@1']:.3f}", f"of {row['n']}") for row in record["per_class"][:WORST]]
    lines += ["", f"found worst (R@1 of {len(record['per_class']):,} classes)", *_aligned(worst)]
    taken = [
        (row["class"], f"taken for {row['taken for']}", f"{row['n']}×, {row['share']:.0%} of them")
        for row in record["confusions"][:WORST]
    ]
    lines += ["", "most often taken for another", *(_aligned(taken) or ["  none"])]
    if record["lone"]:
        lines.append(f"{record['lone']:,} alone in their class, counted as misses")
    return "\n".join(lines)


def _figures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {name: name for name in record if name.startswith("R@")}
    names |= {"map_at_r": "mAP@R", "nmi": "NMI", "f1": "F1", "spectral_decay": "decay"}
    return [(word, _number(record[name])) for name, word in names.items() if name in record]


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def _columns(figures: Iterable[tuple[str, str]]) -> list[str]:
    """Names over their values, flush right."""
    wide = [(name, value, max(len(name), len(value))) for name, value in figures]
    return [
        "  ".join(cell.rjust(w) for cell, w in row) for row in zip(*(((n, w), (v, w)) for n, v, w in wide), strict=True)
    ]


def _aligned(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
