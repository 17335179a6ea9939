"""An embedder for others: as ONNX, images in and unit rows out, with a card that says where it comes from."""

from __future__ import annotations

import copy
import importlib.util
import json
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import likewise
from likewise import media
from likewise.errors import InputError, LikewiseError, MissingExtra
from likewise.images.embedder import Embedder, Network, unit_rows

OPSET = 17
"""The version of ONNX's operators: read by every onnxruntime since 1.12."""
TOLERANCE = 1e-4
"""How far a number of a row in onnxruntime may be from torch's."""
INPUT, OUTPUT = "images", "rows"


@dataclass(frozen=True)
class Exported:
    """What was written: the ONNX file and its card; `difference` is onnxruntime's from torch, None if not at hand."""

    path: Path
    card: Path
    difference: float | None


def export(model: Embedder, path: str | Path) -> Exported:
    """Write an embedder as ONNX, with a card of the same name in Markdown beside it.

    The input `images` is (b, 3, size, size) in [0, 1], RGB, any b: the centre of an image with its shortest side at
    `shortest` px, antialiased bicubic. The output `rows` is (b, dim), each of length 1. Name, sizes and digest are in
    the file's metadata. Where onnxruntime is installed, the file is run before it is written, and must agree to 1e-4.

    Parameters
    ----------
    model : Embedder
        What is exported.
    path : path
        A name that ends in .onnx.

    Returns
    -------
    Exported
        The two files, and the largest difference from torch.

    Raises
    ------
    MissingExtra
        If onnx is not installed (`pip install likewise[onnx]`).
    InputError
        If the name is wrong, or the model has no network.
    LikewiseError
        If onnxruntime does not agree; then nothing is written.

    Examples
    --------
    >>> import likewise as lw, pathlib, tempfile
    >>> net = lw.nn.named("convnet", width=8)
    >>> model = lw.images.Embedder(net, name="mine", dim=8, size=32, shortest=36)
    >>> file = pathlib.Path(tempfile.mkdtemp(), "mine.onnx")
    >>> lw.images.export(model, file).card.name  # doctest: +SKIP
    'mine.md'
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise InputError(f"path: expected a name that ends in .onnx, got {str(path)!r}")
    if not hasattr(getattr(model, "network", None), "features") or not hasattr(model, "size"):
        raise InputError(f"model: expected an Embedder with a network, got {type(model).__name__}")
    if importlib.util.find_spec("onnx") is None:
        raise MissingExtra("onnx", "onnx")
    graph = _onnx(model)
    difference = _difference(model, graph)
    if difference is not None and not difference <= TOLERANCE:
        raise LikewiseError(
            f"{target}: onnxruntime gives rows that differ by {difference:.1e} from torch's, more than {TOLERANCE:g}; "
            f"nothing was written"
        )
    media.write_bytes(target, graph)
    return Exported(target, media.write_text(target.with_suffix(".md"), card(model, difference)), difference)


class _Rows(torch.nn.Module):
    """Images to unit rows, by a copy of the network on the CPU: what is done to it does not reach the model."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.network: Any = copy.deepcopy(model.network).cpu().float().requires_grad_(False).eval()
        self.mirror = model.mirror
        if isinstance(self.network, Network):
            self.network.tail.chunk = None  # a graph cannot cut a batch whose length it does not know

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unit_rows(self.network, x, self.mirror)


def _onnx(model: Embedder) -> bytes:
    """The network as a graph, checked, with what a reader must know in its metadata."""
    import onnx  # an extra

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # it is the older of two exporters; sizes of maps become constants, as meant
        file = Path(folder, "model.onnx")
        torch.onnx.export(
            _Rows(model),
            (torch.zeros(2, 3, model.size, model.size),),
            file,
            dynamo=False,  # torch's newer exporter needs packages that are not at hand
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "b"}, OUTPUT: {0: "b"}},
        )
        graph = onnx.load_from_string(file.read_bytes())
    words = {key: str(getattr(model, key)) for key in ("name", "dim", "size", "shortest", "digest")}
    onnx.helper.set_model_props(graph, words | {"likewise": likewise.__version__})
    onnx.checker.check_model(graph)
    return bytes(graph.SerializeToString())


def _difference(model: Embedder, graph: bytes) -> float | None:
    """The largest difference between onnxruntime and torch on three images of noise; None without onnxruntime."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime  # an extra

    noise = np.random.default_rng(0).random((3, 3, model.size, model.size), dtype=np.float32)
    with torch.inference_mode():
        network = copy.deepcopy(model.network).eval()
        want = unit_rows(network, torch.from_numpy(noise).to(model.device), model.mirror).cpu().numpy()
    try:
        got = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"]).run([OUTPUT], {INPUT: noise})[0]
    except Exception as error:  # its errors have no common root
        raise LikewiseError(f"onnxruntime does not run the graph: {str(error)[:200]}; nothing was written") from error
    return float(np.abs(got - want).max()) if got.shape == want.shape else float("inf")


def card(model: Embedder, difference: float | None = None) -> str:
    """A model card in Markdown: what the graph maps, how an image is prepared, and what the model carries."""
    checked = "not compared" if difference is None else f"off by at most {difference:.1e}"
    carried = json.dumps({"recipe": model.recipe, "figures": model.figures}, ensure_ascii=False, default=str, indent=1)
    return (
        f"# {' '.join(model.name.split())}: images to {model.dim} numbers, near where they look alike\n\n"
        f"**Input.** `{INPUT}` (b, 3, {model.size}, {model.size}): the centre of an image with its shortest side at "
        f"{model.shortest} px, antialiased bicubic; RGB in [0, 1].\n"
        f"**Output.** `{OUTPUT}` (b, {model.dim}), each of length 1; onnxruntime against torch: {checked}.\n"
        f"**Digest.** `{model.digest}` (weights and preparation; rows of another digest cannot be compared).\n\n"
        f"```json\n{carried}\n```\n"
    )
