"""`likewise images`: which pictures are like this one? Train, embed, evaluate, index, search, compare."""

from __future__ import annotations

from typing import Any

import click

from likewise.cli import LazyGroup
from likewise.cli.terminal import DRAWN, remark, result, target


@click.group(
    cls=LazyGroup,
    lazy={
        "train": ("likewise.cli.images_train:train", "Train an embedder on labelled pictures (DiVA)."),
        "embed": ("likewise.cli.images_search:embed", "Embed a folder of pictures to a file of rows."),
        "evaluate": (
            "likewise.cli.images_evaluate:evaluate",
            "How well does a model find pictures of the same class?",
        ),
        "ablate": ("likewise.cli.images_ablate:ablate", "Which tasks help? DiVA's tables and figures on your data."),
        "export": ("likewise.cli.images_export:export", "Write an embedder as ONNX, with a model card."),
    },
)
def images() -> None:
    """Which images are like this one? Without --model, the embedder that needs no training."""


@images.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--model", type=click.Path(), help="a trained model; by default the one that needs no training")
@click.option("--out", default="comparison.png", show_default=True, type=click.Path(), help="where to draw the two")
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
def compare(a: str, b: str, model: str | None, out: str, as_json: bool) -> None:
    """How alike are two pictures? The distance of their embeddings, 0 (same) to 2 (opposite)."""
    from likewise.cli.images_search import model_at
    from likewise.images.compare import compare as compared

    picture = target(out, "out", DRAWN)
    found = compared(a, b, model=model_at(model))
    found.plot(picture)
    record: dict[str, Any] = found.to_dict() | {"picture": out}
    result(f"distance {found.distance:.4f} (cosine {found.cosine:.4f}, {found.model})", record, as_json)
    remark(f"see {out}")
