"""Parts: what a picture shows where, from the pass that gives its row; kept beside it in a gallery, or made again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likewise.images import default
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
