"""RAFT trained on by LIFE's losses: its rows by hand, small images, and the table on toys, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from likewise import media
from likewise.errors import FileError, InputError
from likewise.papers.life import layouts
from likewise.papers.life import raft as tables
from likewise.papers.life.raft import PUBLISHED, Enlarging, Options, _recipe
from likewise.papers.life.rivals import RECIPE
from likewise.pixels.geometry import grid
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import Renderer
from likewise.pixels.sfm import Views
from worlds import scenes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Miniatures of the data, with untrained weights of the smallest network."""
    root = tmp_path_factory.mktemp("data")
    scenes.hpatches(root / "oxford")
    scenes.middlebury(root / "middlebury")
    for side in ("reference", "query"):
        for i in range(3):
            media.write_image(root / "places" / "webcams" / side / f"{i:03d}.jpg", scenes.texture(i))
    (root / "weights").mkdir()
    torch.save(RAFT("small", seed=1).state_dict(), root / "weights" / "raft-small.pth")
    for i in range(4):
        media.write_image(root / "photos" / f"{i}.png", scenes.texture(50 + i, 220, 240))
    return root


# ----------------------------------------------------------------------------------------------------------- its parts


def test_the_recipe_is_the_paper_s_but_for_its_size() -> None:
    ours = _recipe(40, 3)
    assert (ours.network, ours.total, ours.seed, ours.warmup, ours.keep) == ("small", 40, 3, 4, "last")
    same = ("sed", "bit", "cycle", "contrast", "cycle_mode", "light", "night", "bend", "alpha", "beta", "gamma", "clip")
    assert all(getattr(ours, name) == getattr(RECIPE, name) for name in same)


def test_a_row_by_hand() -> None:
    """Two seeds and three pairs: a pair's errors are averaged over seeds, its change is from the published weights'."""
    before = {"AEPE": [1.0, 2.0, 3.0], **{f: [0.5, 0.5, 0.5] for f in tables.FIGURES[1:]}}
    runs = [{**before, "AEPE": [1.0, 1.0, 1.0]}, {**before, "AEPE": [1.0, 1.0, 3.0], "Acc@5": [1.0, 1.0, 1.0]}]
    row = tables._row("toy", "LIFE", runs, before)
    assert (row["AEPE"], row["Acc@1"], row["Acc@5"]) == pytest.approx((4 / 3, 50.0, 75.0))
    changes = [0.0, -1.0, -1.0]
    assert row["AEPE, change"] == pytest.approx(np.mean(changes))
    assert row["AEPE, change, s.e."] == pytest.approx(np.std(changes, ddof=1) / 3**0.5)
    assert row["Acc@5, change"] == pytest.approx(25.0)
    assert "AEPE, change" not in tables._row("toy", PUBLISHED, [before], before)


class Shift:
    """A network that knows by how much b is moved, in pixels of what it is given."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []

    def flow(self, a: torch.Tensor, b: torch.Tensor, iters: int) -> torch.Tensor:
        self.sizes.append(tuple(a.shape[-2:]))
        assert iters == tables.ITERS
        scale = torch.tensor([b.shape[-1] / a.shape[-1], b.shape[-2] / a.shape[-2]])
        own = grid(*a.shape[-2:])
        return (own + 0.5) * scale - 0.5 - own + torch.tensor([6.0, -3.0])


@pytest.mark.parametrize(("h", "w", "factor"), [(96, 128, 3), (192, 200, 1)])
def test_small_images_are_enlarged_and_the_flow_brought_back(h: int, w: int, factor: int) -> None:
    network = Shift()
    flow = Enlarging(network).flow(torch.rand(3, h, w), torch.rand(3, h, w))  # type: ignore[arg-type]
    assert network.sizes == [(factor * h, factor * w)]
    torch.testing.assert_close(flow, torch.tensor([6.0, -3.0]).expand(h, w, 2) / factor, atol=1e-4, rtol=0)
    other = Enlarging(network).flow(torch.rand(3, h, w), torch.rand(3, h, 2 * w))  # type: ignore[arg-type]
    x = torch.arange(w) * 1.0
    torch.testing.assert_close(other[0, :, 0], x + 0.5 + 6 / factor, atol=1e-3, rtol=0)


# ------------------------------------------------------------------------------------------------------------ the table


def views(n: int, size: tuple[int, int], seed: object) -> Views:
    """Pairs whose points move along rows."""
    a = torch.rand(n, 3, *size, generator=torch.Generator().manual_seed(0))
    F = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64) / 2**0.5
    return Views(a, a.roll(2, dims=3), F.expand(n, 3, 3))


def test_what_is_measured(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "held_out_pairs", lambda n: [Renderer(size=(16, 16)).pair(0)] * n)
    counts = {name: len(pairs) for name, pairs in tables._sets(data, 2).items()}
    assert counts == {"RubberWhale": 2, "graf + wall": 3, "leuven + H": 5, "webcams + H": 2, "rendered": 2}


def test_the_table_runs_and_resumes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ITERS", 1)
    monkeypatch.setattr(tables, "_sets", lambda data, n: {"RubberWhale": layouts.read(data / "middlebury")})
    original, sources = tables.train, []

    def train(photos, config, *, scenes, **rest):
        sources.append((scenes, config.seed))
        small = {"height": 64, "width": 64, "pairs": 1, "scenes": 1, "iters": 1}
        return original(photos, tables.replace(config, **small), scenes=views, **rest)

    monkeypatch.setattr(tables, "train", train)
    monkeypatch.setattr("likewise.pixels.training.EXAMINED", 1)
    words = {"data": str(data), "photos": str(data / "photos"), "cells": str(tmp_path), "places": 1, "steps": 1}
    record = tables.raft(Options(**words, sfm="pairs"))
    assert sources == [("rendered", 0), ("pairs", 0)]
    arms = [PUBLISHED, "LIFE, rendered triplets", "LIFE, SfM triplets"]
    assert [(r["data"], r["training"], r["pairs"]) for r in record.rows] == [("RubberWhale", a, 2) for a in arms]
    assert all(0 < abs(r["AEPE, change"]) < 1 for r in record.rows[1:]), "one small step"
    json.dumps(record.to_dict("life-raft", "likewise papers life raft"), allow_nan=False)
    (tmp_path / "sfm-1-0-rubberwhale-1.json").unlink()
    assert tables.raft(Options(**words, sfm="pairs")).rows == record.rows, "what is trained is read, and measured again"
    more = tables.raft(Options(**words, seeds=2))
    assert sources[2:] == [("rendered", 1)]
    assert [r["seeds"] for r in more.rows] == [1, 2]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"photos": ""}, InputError, "photos: expected a folder of photos to bend, got none"),
        ({"data": "nowhere"}, FileError, "nowhere"),
    ],
)
def test_refusals(data: Path, tmp_path: Path, change: dict[str, str], error: type[Exception], words: str) -> None:
    given = {"data": str(data), "photos": str(data / "photos"), "cells": str(tmp_path)} | change
    with pytest.raises(error, match=words):
        tables.raft(Options(**given))
