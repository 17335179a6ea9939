"""`likewise pixels evaluate`: a model's flow, and the matches it guides, where the truth is known."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.pixels_model import model_at, working
from likewise.cli.terminal import check_writable, remark, result, tell_left_out, write_json
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.pixels.data import FlowDataset

LAYOUTS = ("auto", "hpatches", "kitti", "sintel", "middlebury", "megadepth", "robotcar", "colmap")
BASELINES = ("zero", "dis", "dis-equalized", "sift-h")
COLUMNS = (
    "n", "aepe", "acc@1", "acc@3", "acc@5", "fl", "sparse@1", "sparse@3", "sparse@5",
    "matches", "mma@1", "mma@3", "mma@5", "corners@5", "auc@5", "auc@10", "auc@20", "seconds",
)  # fmt: skip
"""Figures that are printed where there are any; the JSON has all."""


@click.command()
@click.argument("data", type=click.Path())
@click.option(
    "--model",
    help=f"a run or a model's file, or {', '.join(BASELINES)}; by default the network that ships",
)
@click.option("--layout", default="auto", show_default=True, type=click.Choice(LAYOUTS), help="how DATA is laid out")
@click.option("--size", default=480, show_default=True, type=click.IntRange(8), help="shortest side of pictures, px")
@click.option("--full-size", is_flag=True, help="measure at the pictures' own size")
@click.option("--generated", is_flag=True, help="HPatches: bend the pictures of other light by homographies, as LIFE")
@click.option("--levels", help="HPatches: which second pictures, such as 2,4,6; by default 2 to 6")
@click.option(
    "--pairs", default=100, show_default=True, type=click.IntRange(1), help="how many, where DATA is rendered"
)
@click.option("--matching", is_flag=True, help="match SIFT with the help of the flow, too, and measure that")
@click.option("--worst", default=3, show_default=True, type=click.IntRange(0), help="pairs that are drawn, worst first")
@click.option("--out", default="evaluate", show_default=True, type=click.Path(), help="folder for JSON and pictures")
@click.option("--json", "as_json", is_flag=True, help="print what stands in evaluate.json")
def evaluate(
    data: str,
    model: str | None,
    layout: str,
    size: int,
    full_size: bool,
    generated: bool,
    levels: str | None,
    pairs: int,
    matching: bool,
    worst: int,
    out: str,
    as_json: bool,
) -> None:
    """Measure flow on pairs of which the truth is known: HPatches, KITTI, Sintel, Middlebury, MegaDepth, RobotCar,
    COLMAP; or `rendered`, the held-out set of the renderer.

    Prints a row a group; writes evaluate.json (every pair) and pictures of the worst pairs.
    """
    from likewise.pixels.evaluation import evaluate as evaluated

    folder = Path(out)
    check_writable(folder)
    dataset = _dataset(data, layout, pairs, generated, levels)
    remark(f"{dataset}")
    network, px = model_named(model), None if full_size else size
    found = evaluated(network, dataset, size=px, matching=matching, progress=sys.stderr.isatty())
    tell_left_out([(s["name"], s["reason"]) for s in found["skipped"]])
    with working("drawing the worst pairs"):
        pictures = _draw(network, dataset, found["pairs"], px, folder, worst)
    record = _plain({**found, "data": data, "pictures": [str(p) for p in pictures]})
    write_json(folder / "evaluate.json", record)
    result("\n".join(_lines(record)), record, as_json)
    remark(f"see {folder}")


def model_named(name: str | None) -> Any:
    """A baseline by its name, or the network in a file."""
    if name not in BASELINES:
        return model_at(name)
    from likewise.papers.life.rivals import DIS, SiftHomography, Zero

    if name == "zero":
        return Zero()
    return SiftHomography() if name == "sift-h" else DIS(equalized=name == "dis-equalized")


def _dataset(data: str, layout: str, pairs: int, generated: bool, levels: str | None) -> FlowDataset:
    from likewise.papers.life import layouts

    chosen: dict[str, Any] = {} if levels is None else {"levels": _levels(levels)}
    chosen |= {"generated": True} if generated else {}
    if data == "rendered" and not Path(data).exists():
        return _rendered(pairs)
    if chosen and layout not in ("auto", "hpatches"):
        raise InputError(f"{', '.join(chosen)}: only for the layout hpatches, got {layout}")
    return layouts.read(data, "hpatches" if chosen else layout, **chosen)


def _rendered(pairs: int) -> FlowDataset:
    from likewise.pixels.data import rendered
    from likewise.pixels.rendering import held_out_pairs

    with working(f"rendering {pairs} pairs"):
        return rendered(held_out_pairs(pairs), "held-out, rendered")


def _levels(words: str) -> tuple[int, ...]:
    parts = [w.strip() for w in words.split(",") if w.strip()]
    if not parts or not all(w.isdecimal() for w in parts):
        raise InputError(f"levels: expected whole numbers with commas between, such as 2,4,6, got {words!r}")
    return tuple(int(w) for w in parts)


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(
    network: Any, dataset: FlowDataset, rows: Sequence[Mapping[str, Any]], px: int | None, folder: Path, most: int
) -> list[Path]:
    """The pairs with the largest errors, aligned as the model has them: worst-1.png …"""
    import torch

    from likewise import plot

    by_name = {pair.name: pair for pair in dataset}
    made = []
    for number, (name, error) in enumerate(worst_of(rows)[:most], start=1):
        sample = by_name[name].load(px)
        with torch.inference_mode():
            flow = network.flow(sample.a, sample.b)
        figure = plot.alignment(sample.a, sample.b, flow, title=f"{name}: {error}")
        made.append(plot.save(figure, folder / f"worst-{number}.png"))
    return made


def worst_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Names of pairs, worst first, each with its error in words: by AEPE, or by the share of points right to 5 px."""
    dense = [(row["aepe"], row["name"], f"AEPE {row['aepe']:.2f} px") for row in rows if "aepe" in row]
    sparse = [
        (1 - row["sparse@5"], row["name"], f"{row['sparse@5']:.0%} of points within 5 px")
        for row in rows
        if "sparse@5" in row
    ]
    return [(name, words) for _, name, words in sorted(dense or sparse, key=lambda r: -r[0])]


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(value: Any) -> Any:
    """What was measured as JSON holds it: numbers that are not finite become null, keys text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _lines(record: Mapping[str, Any]) -> list[str]:
    """The model and the data, then a row a group and one for all."""
    size = "own size" if record["size"] is None else f"{record['side']} side {record['size']} px"
    head = f"{record['dataset']}: {record['n']} pairs at {size}, {record['model']}"
    groups = dict(record["groups"])
    rows = {**groups, "all": record} if len(groups) > 1 else {"all": record}
    columns = [c for c in COLUMNS if any(row.get(c) is not None for row in rows.values())]
    cells = [["", *columns], *([name, *(_cell(c, row.get(c)) for c in columns)] for name, row in rows.items())]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [head]
    for row in cells:
        lines.append(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        )
    if record.get("failures"):
        lines.append(f"no homography was found for {record['failures']} pairs: nothing moves there")
    return lines


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if column in ("n", "matches"):
        return f"{value:.0f}"
    return f"{value:.2f}" if column in ("aepe", "seconds") else f"{value:.3f}"
