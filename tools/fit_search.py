"""The vectors and the verdict of a search, fitted on photos of the same places in other seasons, light and years.

    LIKEWISE_DATA=… python tools/fit_search.py --cells FOLDER

Writes weights/search-places.safetensors (centres and axes, in 8 bits) and weights/search-verdict.json. What both are
worth on a collection that they did not see: `likewise papers places shortlist` and `likewise papers places verdict`.
"""

from __future__ import annotations

import json

import click
import numpy as np
import torch
from safetensors.numpy import save_file

from likewise.papers.places.ranking import Options, fit_shipped
from likewise.search import local, verdict


@click.command()
@click.option("--data", default="", help="the folder of the data; by default $LIKEWISE_DATA")
@click.option("--cells", default="", help="the folder of what the tables measured: read where it is there")
def main(data: str, cells: str) -> None:
    """Fit and write."""
    torch.set_num_threads(1)
    p, judge, counts = fit_shipped(Options(data=data, cells=cells))
    tensors = {"centres": p.centres, "mean": p.mean, "embedding_mean": p.embedding_mean, "gains": p.gains}
    tensors = {name: value.astype(np.float16) for name, value in tensors.items()}
    for name, axes in (("axes", p.axes), ("embedding_axes", p.embedding_axes)):
        scale = np.abs(axes).max(axis=1, keepdims=True) / 127
        tensors |= {name: np.rint(axes / scale).astype(np.int8), f"{name}_scale": scale.astype(np.float32)}
    save_file(tensors, local.WEIGHTS)
    parts = {name: [round(float(v), 6) for v in weights] for name, weights in judge.parts.items()}
    verdict.WEIGHTS.write_text(json.dumps({"parts": parts, **counts}, indent=1) + "\n")
    click.echo(f"{local.WEIGHTS.stat().st_size / 1e6:.2f} MB; {counts}; {parts}")


if __name__ == "__main__":
    main()
