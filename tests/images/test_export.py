"""An embedder as ONNX: the same rows in onnxruntime, any batch, metadata, card; and what is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise as lw
from likewise import cli
from likewise.errors import InputError, LikewiseError, MissingExtra
from likewise.images import Embedder, default
from likewise.images.embedder import assemble
from likewise.images.export import card, export
from likewise.nn import as_backbone, named
from likewise.nn.backbone import crop

module = importlib.import_module("likewise.images.export")  # the name in the package is the function
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def trained(backbone: str = "convnet", norm: str = "folded", heads: int = 4, size: int = 32) -> Embedder:
    """An embedder as `train` makes them, its weights still random."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = assemble(named(backbone), frozen=1, total=32, heads=heads, norm=norm).eval()
    recipe = {"backbone": backbone, "frozen": 1, "norm": norm, "data": "birds", "classes_of_data": 80, "alpha": 0.03}
    return Embedder(network, name="diva", dim=32, size=size, shortest=size + 8, recipe=recipe, figures={"R@1": 0.45123})


def run(path: Path, pictures: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": pictures})[0]


def noise(n: int, size: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def agree(model: Embedder, path: Path, n: int) -> None:
    """onnxruntime on the prepared pixels is `embed` on the pictures, to 1e-4."""
    pictures = noise(n, model.shortest)
    pixels = np.stack([crop(p, model.size, model.shortest) for p in pictures]).transpose(0, 3, 1, 2)
    got = run(path, (pixels / np.float32(255)).astype(np.float32))
    assert got.shape == (n, model.dim)
    np.testing.assert_allclose(got, model.embed(list(pictures)), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_the_default_embedder_gives_the_same_rows(tmp_path: Path) -> None:
    result = export(default(), tmp_path / "model.onnx")
    assert 0 < result.difference < 1e-5
    agree(default(), result.path, 3)


@pytest.mark.parametrize("norm", ["folded", "frozen"])
def test_a_trained_embedder_gives_the_same_rows_for_any_batch(tmp_path: Path, norm: str) -> None:
    model = trained(norm=norm)
    result = export(model, tmp_path / "model.onnx")
    for n in (1, 5, 45):  # more than a chunk, too
        agree(model, result.path, n)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["efficientnet-lite0", "resnet50", "inception-bn"])
def test_every_backbone_can_be_exported(tmp_path: Path, backbone: str) -> None:
    model = trained(backbone, size=64)
    agree(model, export(model, tmp_path / "model.onnx").path, 22)


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    network = as_backbone(torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU()), size=24).eval()
    model = Embedder(network, name="custom", dim=5, size=24, shortest=30)
    agree(model, export(model, tmp_path / "own.onnx").path, 4)


def test_the_file_says_how_to_feed_it(tmp_path: Path) -> None:
    model = trained()
    graph = onnx.load(str(export(model, tmp_path / "model.onnx").path))
    said = {p.key: p.value for p in graph.metadata_props}
    assert said.pop("likewise")
    assert said == {"name": "diva", "dim": "32", "size": "32", "shortest": "40", "digest": model.digest}
    (entry,), (leave,) = graph.graph.input, graph.graph.output
    assert (entry.name, leave.name) == ("images", "rows")
    shape = [d.dim_param or d.dim_value for d in entry.type.tensor_type.shape.dim]
    assert shape == ["b", 3, 32, 32]


def test_exporting_leaves_the_model_alone(tmp_path: Path) -> None:
    """Even one that is still in training, whose normalisations would learn from every picture they see."""
    model = trained(norm="trained")
    model.network.train()
    before, modes = model.digest, [m.training for m in model.network.modules()]
    result = export(model, tmp_path / "model.onnx")
    del model.__dict__["digest"]  # computed anew
    assert model.digest == before
    assert [m.training for m in model.network.modules()] == modes
    model.network.eval()
    agree(model, result.path, 2)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    a, b = (export(trained(), tmp_path / name).path.read_bytes() for name in ("a.onnx", "b.onnx"))
    assert a == b


# ---------------------------------------------------------------------------------------------------------- the card


def test_the_card_says_what_the_model_carries(tmp_path: Path) -> None:
    result = export(trained(), tmp_path / "model.onnx")
    text = result.card.read_text()
    assert result.card == tmp_path / "model.md"
    for part in (
        "# diva: images to 32 numbers",
        "`images` (b, 3, 32, 32): the centre of an image with its shortest side at 40 px",
        "`rows` (b, 32), each of length 1; onnxruntime against torch: off by at most",
        trained().digest,
    ):
        assert part in text, part
    carried = json.loads(text.partition("```json\n")[2].partition("\n```")[0])
    assert carried == {"recipe": trained().recipe, "figures": {"R@1": 0.45123}}
    assert "ImageNet" in card(default())
    assert "Apache-2.0" in card(default())


def test_a_hostile_recipe_stays_in_its_block() -> None:
    model = trained()
    model.name = "diva\n# owned"
    model.recipe |= {"data": "a\n\n# owned\n```\n", "note": "```"}
    lines = card(model).splitlines()
    assert [line for line in lines if line.startswith(("# ", "```"))] == [lines[0], "```json", "```"]
    assert lines[-1] == "```"


# ------------------------------------------------------------------------------------------------------------ refusals


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"path: expected a name that ends in \.onnx"):
        export(trained(), tmp_path / "model.pt")
    with pytest.raises(InputError, match="model: expected an Embedder with a network, got int"):
        export(3, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_its_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No onnx: the line that installs it. No onnxruntime: written, and said to be unchecked."""
    find, gone = module.importlib.util.find_spec, ["onnx"]
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda n, *a: None if n in gone else find(n, *a))
    with pytest.raises(MissingExtra, match=r"pip install 'likewise\[onnx\]'"):
        export(trained(), tmp_path / "model.onnx")
    gone[:] = ["onnxruntime"]
    result = export(trained(), tmp_path / "model.onnx")
    assert result.difference is None
    assert "not compared" in result.card.read_text()
    agree(trained(), result.path, 2)


def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the exported graph is found before the file exists."""
    forward = module._Rows.forward
    monkeypatch.setattr(module._Rows, "forward", lambda self, x: forward(self, x * 0.9))
    with pytest.raises(LikewiseError, match="nothing was written"):
        export(trained(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- the command


def test_the_command_exports_a_saved_model_or_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = trained()
    lw.save(model, tmp_path / "model.safetensors")
    line = ["images", "export", str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "out" / "m.onnx")]
    assert cli.main([*line, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["output"] == ["b", 32]
    assert said["difference"] < 1e-4
    agree(model, tmp_path / "out" / "m.onnx", 3)
    assert (tmp_path / "out" / "m.md").is_file()
    assert cli.main([*line[:2], str(tmp_path / "none.safetensors")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("likewise: ")
    assert "does not exist" in error
