"""Parts: what a picture shows where, from the pass that gives its row; kept beside it in a gallery, or made again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from likewise.errors import FileError, InputError
from likewise.images import Gallery, default
from likewise.images.model import Embedder
from likewise.images.parts import GRID, directions, pooled
from likewise.media import write_image


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


def test_a_gallery_keeps_parts_through_merging_updates_and_removal(photos: Path, tmp_path: Path) -> None:
    truth = default().embed_with_parts(files(photos))[1]
    with Gallery.build(None, photos, tmp_path / "g", parts=True) as gallery:
        assert gallery.store.about.cells == 49
        assert (gallery.parts(files(photos)) == truth).all()
        gallery.remove(files(photos)[:5])
        assert (gallery.parts(files(photos)[5:]) == truth[5:]).all()
        gallery.add(files(photos)[:2])
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.check() == []
        assert set(gallery.store.parts([f"{i}.png" for i in range(9)])) == {f"{i}.png" for i in (0, 1, 5, 6, 7, 8)}
        order = [6, 0, 8]
        assert (gallery.parts([files(photos)[i] for i in order]) == truth[order]).all()


def test_parts_that_are_not_kept_are_made_from_the_files(photos: Path, tmp_path: Path) -> None:
    truth = default().embed_with_parts(files(photos))[1]
    with Gallery.build(None, photos, tmp_path / "g") as gallery:
        assert (gallery.parts(files(photos)[2:4]) == truth[2:4]).all()
        assert (gallery.parts([*files(photos)[:1], str(photos / "gone.png")])[1] == 0).all()


@pytest.mark.parametrize("fault", ["bytes", "short", "missing", "manifest"])
def test_damage_of_parts_is_found(photos: Path, tmp_path: Path, fault: str) -> None:
    Gallery.build(None, photos, tmp_path / "g", parts=True).close()
    file = next((tmp_path / "g").glob("*.parts.npy"))
    content = bytearray(file.read_bytes())
    if fault == "bytes":
        content[-7] ^= 0xFF
        file.write_bytes(content)
        with Gallery.open(tmp_path / "g") as gallery:
            assert any("parts" in problem for problem in gallery.check())
        return
    if fault == "short":
        file.write_bytes(content[:-100])
    elif fault == "missing":
        file.unlink()
    else:
        manifest = json.loads((tmp_path / "g" / "gallery.json").read_text())
        manifest["about"]["cells"] = 0
        (tmp_path / "g" / "gallery.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError):
        Gallery.open(tmp_path / "g")


@pytest.mark.slow
def test_kill_loses_nothing_that_was_kept(photos: Path, tmp_path: Path) -> None:
    """Killed at random moments of many small additions: what a gallery names has its row and its parts."""
    script = textwrap.dedent(
        """
        import sys, likewise.images.embedding as e
        e.CHUNK = 1
        from likewise.images import Gallery, default
        from likewise.images.stores import segments
        segments.SCATTERED = 2
        g = Gallery.build(default(), sys.argv[1], sys.argv[2], parts=True)
        while True:
            g.remove([p for p in list(g)[:4]]); g.add(sys.argv[1])
        """
    )
    truth = default().embed_with_parts(files(photos))[1]
    draw = np.random.default_rng(1)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", script, str(photos), str(tmp_path / "g")])
        time.sleep(3.5 + draw.uniform(0, 1.5))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if not (tmp_path / "g" / "gallery.json").exists():
            continue
        with Gallery.open(tmp_path / "g") as gallery:
            assert gallery.check() == []
            kept = gallery.store.parts([f"{i}.png" for i in range(9)])
            assert set(kept) == set(gallery.store.names())
            assert all((kept[name] == truth[int(Path(name).stem)]).all() for name in kept)
