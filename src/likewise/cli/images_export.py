"""`likewise images export`: an embedder as ONNX, with its card."""

from __future__ import annotations

from pathlib import Path

import click

from likewise.cli.terminal import check_writable, remark, result


@click.command()
@click.argument("model", required=False, type=click.Path())
@click.option("--out", default="model.onnx", show_default=True, type=click.Path(), help="the file; a .md beside it")
@click.option("--opset", default=17, show_default=True, type=click.IntRange(13, 20), help="version of ONNX's operators")
@click.option("--json", "as_json", is_flag=True, help="print what was written as JSON")
def export(model: str | None, out: str, opset: int, as_json: bool) -> None:
    """Write the embedder in the file MODEL as ONNX, with a model card; without MODEL, the one that needs no training.

    The graph maps pictures (b, 3, side, side) in [0, 1] to unit rows; it is run with onnxruntime before it is kept.
    """
    from likewise.cli.images_search import model_at
    from likewise.images.exporting import export as exported

    check_writable(Path(out).absolute().parent)
    embedder = model_at(model)
    found = exported(embedder, out, opset=opset)
    record = {
        "model": embedder.name,
        "onnx": str(found.path),
        "card": str(found.card),
        "input": ["b", 3, found.size, found.size],
        "output": ["b", found.dim],
        "bytes": found.bytes,
        "difference": found.difference,
    }
    checked = "not compared" if found.difference is None else f"off by at most {found.difference:.1e}"
    size = f"(b, 3, {found.size}, {found.size}) → (b, {found.dim}), {found.bytes / 1e6:.1f} MB"
    result(f"{found.path}: {size}, onnxruntime against torch: {checked}", record, as_json)
    remark(f"see {found.card}")
