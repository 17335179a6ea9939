"""Parts: what a picture shows where, from the pass that gives its row; kept beside it in a gallery, or made again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likewise.errors import InputError
from likewise.images import default
from likewise.images.model import Embedder
from likewise.images.parts import GRID, directions, pooled
from likewise.media import write_image
from likewise.search import Collection


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine small pictures, each of one colour in each quarter."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for i in range(9):
        quarters = draw.integers(0, 255, (2, 2, 3), dtype=np.uint8)
        write_image(folder / f"{i}.png", quarters.repeat(40, 0).repeat(48, 1))
    return folder


def files(folder: Path) -> list[str]:
    return [str(folder / f"{i}.png") for i in range(9)]


def test_rows_are_the_same_with_and_without_parts(photos: Path) -> None:
    rows, parts = default().embed_with_parts(files(photos))
    np.testing.assert_allclose(rows, default().embed(files(photos)), atol=1e-6)
    assert parts.shape == (9, GRID * GRID, 112)
    assert parts.dtype == np.int8
    assert (np.abs(parts.astype(int)).max(axis=2) == 127).all()


def test_parts_are_the_directions_of_the_grid_means_of_block_10(photos: Path) -> None:
    import torch

    from likewise.media import read_array
    from likewise.nn.backbone import crop

    model = default()
    x = torch.tensor(crop(read_array(files(photos)[0]))).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        maps = model.network.features(x, 10)[0].numpy()
    assert maps.shape[1:] == (14, 14)
    naive = np.stack([maps[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2)) for i in range(7) for j in range(7)])
    naive /= np.linalg.norm(naive, axis=1, keepdims=True)
    found = directions(model.embed_with_parts(files(photos)[:1])[1][0])
    assert (found * naive).sum(1).min() > 0.999  # eight bits


def test_a_zero_map_gives_zero_parts() -> None:
    import torch

    assert (pooled(torch.zeros(1, 4, 14, 14)) == 0).all()
    assert (directions(np.zeros((2, 4), np.int8)) == 0).all()


def test_a_trained_network_has_parts_and_mirror_does_not_change_them(photos: Path) -> None:
    from likewise import nn as backbones
    from likewise.images.network import assemble

    network = assemble(backbones.named("efficientnet-lite0"), frozen=12, total=16, heads=2).eval()
    plain, mirrored = (Embedder(network, name="t", dim=16, mirror=m) for m in (False, True))
    rows, parts = plain.embed_with_parts(files(photos)[:2])
    np.testing.assert_allclose(rows, plain.embed(files(photos)[:2]), atol=1e-6)
    np.testing.assert_allclose(
        mirrored.embed_with_parts(files(photos)[:2])[0], mirrored.embed(files(photos)[:2]), atol=1e-6
    )
    assert (parts == mirrored.embed_with_parts(files(photos)[:2])[1]).all()


def test_a_network_without_a_map_says_so() -> None:
    import torch

    class Flat(torch.nn.Module):
        def features(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :8] + 1

    model = Embedder(Flat(), name="flat", dim=8)
    assert model.part_shape is None
    with pytest.raises(InputError, match="no map"):
        model.embed_with_parts([np.zeros((8, 8, 3), np.uint8)])


def test_an_index_keeps_parts_through_updates_and_removal(photos: Path, tmp_path: Path) -> None:
    truth = default().embed_with_parts(files(photos))[1]
    with Collection.build(photos, tmp_path / "i") as made:
        assert made.about.cells == 49
        assert (made.parts(files(photos)) == truth).all()
        made.remove(files(photos)[:5])
        assert (made.parts(files(photos)[5:]) == truth[5:]).all()
        assert (made.parts(files(photos)[2:4]) == truth[2:4]).all(), "what is not kept is made from the files"
        assert (made.parts([*files(photos)[:1], str(photos / "gone.png")])[1] == 0).all()
        made.add(files(photos)[:2])
    with Collection.open(tmp_path / "i") as made:
        assert made.check() == []
        assert set(made.index.parts([f"{i}.png" for i in range(9)])) == {f"{i}.png" for i in (0, 1, 5, 6, 7, 8)}
        order = [6, 0, 8]
        assert (made.parts([files(photos)[i] for i in order]) == truth[order]).all()
