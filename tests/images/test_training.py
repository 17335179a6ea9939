"""Training end to end on made pictures: it learns, repeats, resumes, saves, and two processes equal one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import likewise as lw
from likewise import media
from likewise.errors import InputError
from likewise.images.config import Config
from likewise.images.data import Augment, BalancedBatches, Loader
from likewise.images.embedder import principal_axes
from likewise.images.metrics import recall_at_k
from likewise.images.training import MODEL, CachedCrops, FeatureCache, Training, ValidationSet, train
from likewise.nn import as_backbone
from likewise.nn.backbone import seeded
from likewise.papers.diva import rivals as rivals  # registers the tasks that the paper compares with
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from worlds.shapes import stripes

SMALL: dict[str, Any] = {
    "tasks": "disc,shared,intra,dance",
    "backbone": "convnet", "size": 32, "shortest": 36, "dim": 32, "classes": 4, "per_class": 4, "queue": 64,
    "norm": "trained", "lr": 1e-3, "head_lr": 1e-3, "steps": 12, "evaluate_every": 6, "workers": 1, "smallest": 0.6,
}  # fmt: skip


def config(**changes: Any) -> Config:
    return Config(**{**SMALL, **changes})


@pytest.mark.slow
def test_it_finds_new_classes_better_than_before(tmp_path: Path) -> None:
    data, new = stripes(12, 12), stripes(8, 10, first=100, seed=1)
    untrained = train(data, config(steps=1, lr=0.0, head_lr=0.0, validation=0.25))
    trained = train(data, config(steps=60, validation=0.25), out=tmp_path / "run")
    before, after = (recall_at_k(m.embed(new.items), new.labels, ks=(1,))[1] for m in (untrained, trained))
    assert after > before + 0.05
    run = Run.open(tmp_path / "run")
    assert run.result["validation_r1"] == pytest.approx(max(m["validation_r1"] for m in run.metrics() if "score" in m))


@pytest.mark.parametrize(
    "tasks",
    ["disc", "disc,shared,intra,dance", "disc,moco", "disc,instance", "disc,cluster,none,none"],
)
def test_every_task_can_be_trained_and_repeats(tasks: str) -> None:
    data = stripes(6, 6)
    first, again = (train(data, config(tasks=tasks, steps=4, rho=0.01, validation=0.0)) for _ in range(2))
    a, b = (m.embed(data.items[:4]) for m in (first, again))
    assert np.array_equal(a, b)
    assert np.linalg.norm(a, axis=1) == pytest.approx(np.ones(4), abs=1e-5)


def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Killed by an error after some steps; with queue, momentum network, averaged weights and learned β."""
    data = stripes(8, 8)
    chosen = config(rho=0.01, ema=0.9, save_every=0.0, tasks="disc,shared,intra,dance")
    whole = train(data, chosen, out=tmp_path / "whole")

    real, count = Training.loss, iter(range(100))

    def killed(self: Training, step: int) -> Any:
        if next(count) == 8:
            raise KeyboardInterrupt
        return real(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "loss", killed)
        with pytest.raises(KeyboardInterrupt):
            train(data, chosen, out=tmp_path / "parts")
    parts = train(data, chosen, out=tmp_path / "parts", resume=True)
    for (key, a), b in zip(whole.network.state_dict().items(), parts.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    assert (tmp_path / "whole" / MODEL).read_bytes() == (tmp_path / "parts" / MODEL).read_bytes()


@pytest.mark.parametrize("norm", ["folded", "frozen", "trained"])
def test_saved_and_loaded_it_gives_the_same_rows(tmp_path: Path, norm: str) -> None:
    data = stripes(6, 6)
    model = train(data, config(norm=norm, steps=3, frozen=1, views=2 if norm != "trained" else 0, validation=0.0))
    lw.save(model, tmp_path / "model.safetensors")
    again = lw.load(tmp_path / "model.safetensors")
    assert np.array_equal(model.embed(data.items[:5]), again.embed(data.items[:5]))
    assert again.digest == model.digest
    assert again.recipe["norm"] == norm


def test_the_default_embedder_is_stored_by_name(tmp_path: Path) -> None:
    lw.save(lw.images.default(), tmp_path / "default.safetensors")
    assert (tmp_path / "default.safetensors").stat().st_size < 2000
    assert lw.load(tmp_path / "default.safetensors").digest == lw.images.default().digest


def test_a_mirrored_embedder_does_not_tell_left_from_right(tmp_path: Path) -> None:
    data = stripes(6, 6)
    plain = train(data, config(steps=3, validation=0.0, mirror=False))
    mirrored = train(data, config(steps=3, validation=0.0, mirror=True))
    assert not train(data, config(steps=1, validation=0.0, mirror=True, flip=False)).mirror
    pictures = list(data.items[:3])
    turned = [np.ascontiguousarray(p[:, ::-1]) for p in pictures]
    assert np.abs(mirrored.embed(pictures) - mirrored.embed(turned)).max() < 1e-5
    both = plain.embed(pictures) + plain.embed(turned)
    assert mirrored.embed(pictures) == pytest.approx(both / np.linalg.norm(both, axis=1, keepdims=True), abs=1e-5)
    assert np.abs(plain.embed(pictures) - plain.embed(turned)).max() > 1e-3
    lw.save(mirrored, tmp_path / "m.safetensors")
    again = lw.load(tmp_path / "m.safetensors")
    assert again.digest == mirrored.digest != plain.digest
    assert np.array_equal(again.embed(pictures), mirrored.embed(pictures))


@pytest.mark.parametrize("frozen", [0, 2])
def test_what_is_watched_is_what_the_embedder_gives(frozen: int) -> None:
    """With mirror images and a frozen part or not: the same rows from kept inputs and from pictures."""
    data = stripes(6, 6)
    problem = Training(data, data, {}, config(steps=2, frozen=frozen, norm="frozen"), processes=ProcessGroup())
    model = problem.fit(None, resume=False)
    rows = problem.watched["validation"].embed(model.network)
    assert rows == pytest.approx(model.embed(data.items), abs=3e-3 if frozen else 1e-5)  # kept as float16


class Mine(nn.Module):
    """A network of the user's own."""

    dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 5, stride=4)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean(dim=(2, 3))

    def parts(self) -> list[nn.Module]:
        return [self.conv, nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def test_a_run_of_any_module_keeps_its_weights_and_goes_on(tmp_path: Path) -> None:
    data = stripes(8, 6)
    chosen = config(steps=4, evaluate_every=2, dim=8, tasks="disc,disc", save_every=0.0)
    before = torch.random.get_rng_state()
    whole = train(data, chosen, backbone=_mine(), out=tmp_path / "run")
    assert torch.equal(before, torch.random.get_rng_state())  # nobody else's random numbers are touched
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert not (tmp_path / "run" / MODEL).exists()
    again = train(data, chosen, backbone=_mine(), out=tmp_path / "run", resume=True)  # nothing left to do
    assert np.array_equal(whole.embed(data.items[:4]), again.embed(data.items[:4]))


def _mine() -> Mine:
    with seeded(3):
        return Mine()


def test_any_module_can_be_trained_but_not_described_by_a_file(tmp_path: Path) -> None:
    data = stripes(6, 6)
    model = train(data, config(steps=3, validation=0.0, dim=8), backbone=Mine())
    assert model.embed(data.items[:3]).shape == (3, 8)
    plain = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU())  # without parts and dim: wrapped
    assert train(data, config(steps=2, validation=0.0, dim=8), backbone=plain).embed(data.items[:3]).shape == (3, 8)
    with pytest.raises(InputError, match="network of your own"):
        lw.save(model, tmp_path / "mine.safetensors")


def test_kept_crops_of_a_frozen_part_are_made_once(tmp_path: Path) -> None:
    data = stripes(6, 6)
    chosen = config(frozen=2, norm="frozen", steps=3, validation=0.0)
    first = train(data, chosen, cache=tmp_path)
    files = {f.name: f.stat().st_mtime_ns for f in tmp_path.glob("frozen-*.npy")}
    again = train(data, chosen, cache=tmp_path)
    assert files
    assert files == {f.name: f.stat().st_mtime_ns for f in tmp_path.glob("frozen-*.npy")}
    assert np.array_equal(first.embed(data.items[:3]), again.embed(data.items[:3]))
    train(data, dataclasses.replace(chosen, seed=5), cache=tmp_path)
    assert len(list(tmp_path.glob("frozen-*.npy"))) > len(files)  # other crops, another file


def test_principal_axes_by_hand() -> None:
    """Half whitened: a variance of 16 becomes 4, one of 1 stays; the turn changes no distance between rows."""
    x = np.array([[4.0, 0], [-4, 0], [0, 1], [0, -1]]) * np.sqrt(1.5) + [3.0, 5.0]
    weight, bias = principal_axes(x, 2, seed=0)
    y = x @ weight.T + bias
    assert y.mean(axis=0) == pytest.approx([0, 0], abs=1e-5)
    assert np.sort(np.linalg.eigvalsh(np.cov(y.T))) == pytest.approx([1.0, 4.0], rel=1e-4)
    d = np.linalg.norm(y[0] - y[1]), np.linalg.norm(y[2] - y[3])
    assert d[0] / d[1] == pytest.approx(2.0, rel=1e-4)  # 4 before
    assert principal_axes(x, 5, seed=0)[0].shape == (5, 2)
    with pytest.raises(InputError, match="all rows are equal"):
        principal_axes(np.ones((4, 3)), 2, seed=0)


def test_clear_refusals(tmp_path: Path) -> None:
    data = stripes(3, 4)
    train(data, config(steps=1, classes=2, validation=0.0), out=tmp_path)
    for call, said in (
        (lambda: train(data, config(classes=8, validation=0.0)), "at most"),
        (lambda: config(tasks="disc,disk"), "tasks: expected disc"),
        (lambda: config(dim=30), "cannot be shared evenly"),
        (lambda: config(per_class=2), "per_class"),
        (lambda: train(stripes(2, 6), config(validation=0.5)), "validation: 2 classes cannot be divided"),
        (lambda: train(data, config(classes=3, frozen=99, validation=0.0)), "the backbone has 6 parts"),
        (
            lambda: train(data, config(classes=2), validation=data.subset([0, 4, 8])),
            "validation: no class has two images",
        ),
        (lambda: train(data, config(steps=2, classes=2, validation=0.0), out=tmp_path, resume=True), "another config"),
    ):
        with pytest.raises(InputError, match=said):
            call()


def test_an_unreadable_file_is_never_fatal(tmp_path: Path) -> None:
    from PIL import Image

    data = stripes(5, 6)
    for c in range(5):
        folder = tmp_path / f"class-{c}"
        folder.mkdir()
        for i in range(6):
            Image.fromarray(data.items[6 * c + i]).save(folder / f"{i}.png")
    (tmp_path / "class-1" / "3.png").write_bytes(b"no picture")
    broken = tmp_path / "class-2" / "4.png"
    broken.write_bytes(broken.read_bytes()[:200])
    model = train(lw.images.folder(tmp_path), config(steps=4, validation=0.4, classes=3))
    assert 0 <= model.figures["validation_r1"] <= 1


# ------------------------------------------------------------------------------------------------- many processes

RANKS = """
import json, sys
import torch
torch.set_num_threads(1)
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Loop
from likewise.images.config import Config
from likewise.images.training import Training
from worlds.shapes import stripes

processes = ProcessGroup.current()
problem = Training(stripes(8, 8), None, {}, Config(**json.loads(sys.argv[1])), processes=processes)
loop = Loop(problem, problem.settings, processes=processes)
losses = []
for step in range(problem.settings.steps):
    loss, _ = problem.loss(step)
    losses.append(loss.item())
    loop._step(step)
if processes.first:
    norm = sum(p.double().square().sum().item() for p in problem.network.parameters())
    found = {"losses": losses, "norm": norm, "queue": problem.objective.tasks[3].queue.ids.tolist()}
    json.dump(found, open(sys.argv[2], "w"))
"""


@pytest.mark.slow
def test_two_processes_equal_one_with_the_double_batch(tmp_path: Path) -> None:
    """Frozen normalisations and shared draws: mining, queue and gradients see both processes' rows."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    chosen = SMALL | {"norm": "frozen", "steps": 5, "rho": 0.01, "tasks": "disc,shared,intra,dance", "workers": 1}
    here = Path(__file__).parents[1]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent / "src")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    measured = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.json"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        arguments = [str(script), json.dumps(chosen), str(out)]
        done = subprocess.run([*launch, *arguments], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        measured.append(json.loads(out.read_text()))
    one, two = measured
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert two["norm"] == pytest.approx(one["norm"], rel=1e-6)
    assert two["queue"] == one["queue"]
    assert len(set(one["losses"])) == len(one["losses"])


def test_a_network_of_ones_own_is_looked_at_as_it_is_used() -> None:
    """Its normalisations are not moved by the pass that finds principal axes, nor by that of a frozen part."""
    own = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    chosen = config(tasks="disc", norm="frozen", steps=1, lr=0.0, head_lr=0.0, validation=0.0, start="pca")
    trained = train(stripes(4, 6), chosen, backbone=as_backbone(own, size=32))
    (norm,) = [m for m in trained.network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert torch.equal(norm.running_mean, torch.zeros(8))


def torn(folder: Path, data: Any, *bad: int) -> Any:
    """The pictures as files, of which some cannot be read."""
    files = [media.write_image(folder / f"{i}.png", item) for i, item in enumerate(data.items)]
    for i in bad:
        files[i].write_bytes(b"\x89PNG torn")
    return dataclasses.replace(data, items=tuple(files))


def test_what_could_not_be_read_is_known_after_a_resume(tmp_path: Path) -> None:
    data = torn(tmp_path / "files", stripes(3, 4), 0, 5)
    chosen = config(frozen=1, norm="frozen", mirror=False, tasks="disc")
    network = Training(stripes(4, 4), None, {}, chosen, processes=ProcessGroup()).whole.eval()
    with torch.no_grad():
        seen = [ValidationSet(data, chosen, network.stem, "cpu", cache=tmp_path / "cache") for _ in range(2)]
        recalls = [one.recall(network) for one in seen]
    assert recalls[0] == recalls[1]
    assert [s.index for s in seen[1].loader.skipped] == [s.index for s in seen[0].loader.skipped] == [0, 5]


def test_kept_maps_are_those_of_the_pictures_that_are_shown(tmp_path: Path) -> None:
    data = torn(tmp_path / "files", stripes(3, 4), 1, 8, 9, 10, 11)  # one of class 0, all of class 2
    augment = Augment(size=32, random=False, shortest=36)
    kept = []
    for _ in range(2):
        loader = Loader(data.items, data.labels, augment)
        kept.append(FeatureCache(nn.Sequential(nn.AvgPool2d(8)), loader, 1, folder=tmp_path / "cache"))
        assert [s.index for s in loader.skipped] == [1, 8, 9, 10, 11]
    maps, shown = kept[0].maps, kept[0].shown
    assert np.array_equal(maps, kept[1].maps)
    assert np.array_equal(shown, kept[1].shown)
    assert data.labels[shown[1]] == 0
    assert all(np.array_equal(maps[i], maps[shown[i]]) for i in range(12))
    assert set(shown) == {0, 2, 3, 4, 5, 6, 7}
    source = CachedCrops(kept[0], BalancedBatches(data.labels, 3, 4), views=1, seed=0, processes=ProcessGroup())
    assert set(data.labels[source.batch(0)[0]]) == {0, 1}


def test_a_picture_that_has_changed_is_looked_at_again(tmp_path: Path) -> None:
    data = torn(tmp_path / "files", stripes(2, 2))
    augment, stem = Augment(size=32, random=False, shortest=36), nn.Sequential(nn.AvgPool2d(8))

    def maps() -> np.ndarray:
        loader = Loader(data.items, data.labels, augment)
        return FeatureCache(stem, loader, 1, folder=tmp_path / "cache").maps

    before = np.array(maps())
    media.write_image(data.items[0], np.zeros((40, 40, 3), np.uint8))
    assert not np.array_equal(before[0], maps()[0])
    assert maps()[0].max() == 0
