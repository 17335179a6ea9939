"""`likewise images`: train, embed, evaluate, export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import (
    cluster_flags,
    device_flag,
    flag,
    json_flag,
    model_flags,
    out_flag,
    seed_flag,
    training_flags,
)
from likewise.errors import FileError
from likewise.train.options import build

TRAINING = {
    "Length": ("steps", "epochs", "evaluate_every"),
    "Data": ("size", "classes", "validation"),
    "Network": ("backbone", "weights", "dim", "tasks", "frozen", "lr"),
}
"""The options of Config that are flags, by their headings; the others are for Python and `likewise papers diva`."""

with_model = model_flags("a trained model; by default the one that needs no training")


def model_at(path: str | None, device: str = "cpu") -> Any:
    """The model in a file, or the default one."""
    from likewise.images import default
    from likewise.store.checkpoint import load

    if path is None:
        return default() if device == "cpu" else default(device=device)
    model = load(path)
    if not hasattr(model, "embed"):
        raise FileError(f"{path}: holds a {type(model).__name__}, which does not embed images")
    return terminal.move(model, device)


@click.command(cls=Command)
@click.argument("data", type=click.Path())
@out_flag("run", "the run directory")
@device_flag
@seed_flag
@training_flags("likewise.images.config:Config", TRAINING)
@json_flag
def train(data: str, out: str, resume: bool, device: str, as_json: bool, **given: Any) -> None:
    """Train an embedder on the classes of DATA: a folder for each class.

    Some classes are set aside; R@1 on them is told as it goes and chooses the weights. Writes RUN/model.safetensors,
    metrics.jsonl and curves.png. A stopped run resumes with the same command. Several processes:
    torchrun --nproc-per-node 2 -m likewise.cli images train …  The paper's recipes: `likewise papers diva`.

    \b
    likewise images train birds/ --out run --epochs 20
    """
    from likewise.images import folder as read_folder
    from likewise.images.config import Config
    from likewise.images.training import train as train_embedder
    from likewise.train.distributed import ProcessGroup

    place, first = terminal.unfinished(out), ProcessGroup.current().first
    config, dataset = build(Config, given), read_folder(data)
    if first:
        terminal.remark(f"{dataset}")
    model = train_embedder(dataset, config, out=place, resume=resume, device=device)
    if first:
        watched = {key: key.removesuffix("_r1") for key in sorted(model.figures) if key.endswith("_r1")}
        terminal.tell_training(place, model.name, watched, "R@1", as_json)


@click.command(cls=Command)
@click.argument("folder", type=click.Path())
@flag("--out", required=True, type=click.Path(), help="rows.npz: rows and names")
@with_model
@cluster_flags
@json_flag
def embed(folder: str, out: str, model: str | None, device: str, as_json: bool, **given: Any) -> None:
    """Turn every image below FOLDER into a row of numbers, near each other where images are alike.

    An interrupted run resumes. An image that cannot be read is named, counted and left out.

    \b
    likewise images embed photos/ --out rows.npz
    """
    from likewise.images.embedding import embed_folder

    terminal.check_writable(Path(out).absolute().parent)
    rows = embed_folder(folder, out, model_at(model, device), progress=True, **given)
    skipped = terminal.tell_left_out([(s.name, s.reason) for s in rows.skipped])
    record = {"rows": len(rows), "dim": int(rows.rows.shape[1]), "model": rows.model, "out": out, "skipped": skipped}
    terminal.result(f"{len(rows)} × {rows.rows.shape[1]} rows of {rows.model} in {out}", record, as_json)


@click.command(cls=Command)
@click.argument("data", type=click.Path())
@with_model
@flag("--ks", default="1,2,4,8", callback=terminal.numbers(int), help="the k of R@k, with commas between")
@flag("--nmi/--no-nmi", default=True, help="cluster, too: slow with thousands of classes")
@out_flag("evaluate", "folder for evaluate.json and figures")
@json_flag
def evaluate(data: str, model: str | None, device: str, ks: list[int], nmi: bool, out: str, as_json: bool) -> None:
    """Look every image of DATA, a folder for each class, up among all others: is the nearest of the same class?

    Images that cannot be read are named, counted and left out. Writes evaluate.json (figures, recall of each class,
    confusions), rankings.png (images drawn at random with their nearest, right ones green, wrong ones red) and
    spectrum.png. Published benchmarks: `likewise papers diva`.

    \b
    likewise images evaluate birds/ --model run/model.safetensors
    """
    from likewise import plot
    from likewise.images import folder as read_folder
    from likewise.images.evaluation import examine
    from likewise.images.metrics import check_ks

    wanted, place, dataset = check_ks(ks), terminal.check_writable(Path(out)), read_folder(data)
    terminal.remark(f"{dataset}")
    report = examine(model_at(model, device), dataset, ks=wanted, progress=sys.stderr.isatty(), nmi=nmi)
    terminal.tell_left_out([(s["name"], s["reason"]) for s in report.figures["skipped"]])
    record = terminal.finite(report.figures) | {"per_class": report.per_class(), "confusions": report.confusions()}
    record["data"] = data
    terminal.write_json(place / "evaluate.json", record)
    plot.save(report.plot_rankings(), place / "rankings.png")
    plot.save(report.plot_spectrum(), place / "spectrum.png")
    terminal.result(_words(record).splitlines(), record, as_json)
    terminal.remark(f"see {place / 'rankings.png'} and {place / 'spectrum.png'}")


def _words(record: Mapping[str, Any]) -> str:
    """Figures in a line; the JSON has every class and confusion."""
    names = {name: name for name in record if name.startswith("R@")}
    names |= {"map_at_r": "mAP@R", "nmi": "NMI", "f1": "F1", "spectral_decay": "decay"}
    figures = [(w, "∞" if record[n] is None else f"{record[n]:.3f}") for n, w in names.items() if n in record]
    lines = [f"{record['dataset']}: {record['n']:,} images of {record['classes']:,} classes, {record['model']}"]
    lines += terminal.columns([[""] + [w for w, _ in figures], [""] + [v for _, v in figures]])
    if record["lone"]:
        lines.append(f"{record['lone']:,} alone in their class, counted as misses")
    return "\n".join(lines)


@click.command(cls=Command)
@click.argument("model", required=False, type=click.Path())
@out_flag("model.onnx", "the file; a .md beside it")
@json_flag
def export(model: str | None, out: str, as_json: bool) -> None:
    """Write the embedder in the file MODEL as ONNX, with a model card; without MODEL, the one that needs no training.

    The graph maps images (b, 3, side, side) in [0, 1] to unit rows; it is run with onnxruntime before it is kept.

    \b
    likewise images export run/model.safetensors --out model.onnx
    """
    from likewise.images.export import export as write_onnx

    terminal.check_writable(Path(out).absolute().parent)
    embedder = model_at(model)
    made = write_onnx(embedder, out)
    side, dim, size = embedder.size, embedder.dim, made.path.stat().st_size
    record = {
        "model": embedder.name,
        "onnx": str(made.path),
        "card": str(made.card),
        "input": ["b", 3, side, side],
        "output": ["b", dim],
        "bytes": size,
        "difference": made.difference,
    }
    checked = "not compared" if made.difference is None else f"off by at most {made.difference:.1e}"
    shapes = f"(b, 3, {side}, {side}) → (b, {dim}), {size / 1e6:.1f} MB"
    terminal.result(f"{made.path}: {shapes}, onnxruntime against torch: {checked}", record, as_json)
    terminal.remark(f"see {made.card}")
