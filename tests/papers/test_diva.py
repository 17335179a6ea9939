"""DiVA's room: published layouts rebuilt in miniature, rivals, presets, and tables made from variants and seeds."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from likewise.errors import ConfigError, FileError, InputError, LikewiseError
from likewise.images import losses
from likewise.images.config import Config
from likewise.images.data import Dataset
from likewise.papers import diva as tables
from likewise.papers.diva import TABLES, layouts, rivals
from likewise.papers.diva.rivals import PRESETS, preset
from worlds.shapes import batch, names_of, put, stripes, unit

# ------------------------------------------------------------------------------------------------------------- CUB200


def test_cub_as_published_and_by_its_folders_alone(tmp_path: Path) -> None:
    put(
        tmp_path / "CUB_200_2011" / "images", *(f"{n:03d}.Bird_{n}/{k}.png" for k in (1, 2) for n in (200, 101, 100, 1))
    )
    (tmp_path / "CUB_200_2011" / "image_class_labels.txt").touch()
    for root in (tmp_path, tmp_path / "CUB_200_2011"):
        train, test = (layouts.read(root, split=s) for s in ("train", "test"))
        assert (train.name, train.classes) == ("cub200", ("001.Bird_1", "100.Bird_100"))
        assert test.classes == ("101.Bird_101", "200.Bird_200")
        assert [f for _, f in names_of(train)] == ["1.png", "2.png"] * 2
        assert len(layouts.cub200(root)) == 8
    bare = layouts.cub200(tmp_path / "CUB_200_2011" / "images", "test")
    assert names_of(bare) == names_of(layouts.cub200(tmp_path, "test"))


def test_bare_cub_folders_are_recognised_when_all_are_there(tmp_path: Path) -> None:
    put(tmp_path, *(f"{n:03d}.Bird_{n}/x.png" for n in range(1, 201)))
    assert layouts.read(tmp_path, split="train").classes[-1] == "100.Bird_100"
    shutil.rmtree(tmp_path / "200.Bird_200")
    assert layouts.read(tmp_path).name == tmp_path.name  # somebody's own folders
    assert len(layouts.read(tmp_path, layout="cub200", split="test").classes) == 99


# ------------------------------------------------------------------------------------------------------- CARS196, SOP


def cars(root: Path, numbers: tuple[int, ...] = (98, 1, 99, 196, 1)) -> Path:
    """cars_annos.mat as published: a 1 × n struct of paths, boxes, classes and the classification split."""
    from scipy.io import savemat

    files = [f"car_ims/{i:06d}.png" for i in range(1, len(numbers) + 1)]
    put(root, *files)
    names = np.array([f"Car {n}" for n in range(1, 197)], dtype=object)
    kind = [(k, object) for k in ("relative_im_path", "bbox_x1", "class", "test")]
    rows = np.array([[(f, 5, c, 0) for f, c in zip(files, numbers, strict=True)]], dtype=kind)
    savemat(root / "cars_annos.mat", {"annotations": rows, "class_names": names[None]})
    return root


def test_cars_by_its_annotations(tmp_path: Path) -> None:
    root = cars(tmp_path)
    train = layouts.read(root, split="train")
    assert names_of(train) == [("Car 1", "000002.png"), ("Car 1", "000005.png"), ("Car 98", "000001.png")]
    assert layouts.read(root, split="test").classes == ("Car 99", "Car 196")
    assert len(layouts.cars196(root)) == 5


def test_cars_by_class_folders(tmp_path: Path) -> None:
    put(tmp_path, *(f"Car {n:03d}/x.png" for n in range(1, 197)))
    train, test = (layouts.cars196(tmp_path, s) for s in ("train", "test"))
    assert (len(train.classes), len(test.classes)) == (98, 98)
    assert (train.classes[-1], test.classes[0], train.name) == ("Car 098", "Car 099", "cars196")


def products(root: Path) -> Path:
    inner = root / "Stanford_Online_Products"
    files = ["bicycle_final/11_0.png", "bicycle_final/11_1.png", "chair_final/22_0.png", "chair_final/33_0.png"]
    put(inner, *files)
    head = "image_id class_id super_class_id path\n"
    (inner / "Ebay_train.txt").write_text(head + f"1 1 1 {files[0]}\n2 1 1 {files[1]}\n3 2 2 {files[2]}\n")
    (inner / "Ebay_test.txt").write_text(head + f"4 3 2 {files[3]}\n")
    return root


def test_sop_by_its_lists(tmp_path: Path) -> None:
    root = products(tmp_path)
    train = layouts.read(root, split="train")
    assert train.classes == ("bicycle_final/1", "chair_final/2")
    assert train.labels.tolist() == [0, 0, 1]
    assert layouts.read(root / "Stanford_Online_Products", split="test").classes == ("chair_final/3",)
    assert len(layouts.sop(root)) == 4


HEAD = "image_id class_id super_class_id path\n"


def listed(root: Path, text: str | bytes, name: str = "Ebay_train.txt") -> Path:
    """Products with another list."""
    (products(root) / "Stanford_Online_Products" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def annotated(root: Path, damage: str) -> Path:
    """Cars of which an image lacks, or whose annotations are none."""
    if damage == "image":
        (cars(root) / "car_ims" / "000002.png").unlink()
    else:
        (cars(root) / "cars_annos.mat").write_bytes(b"no matrix at all")
    return root


def bird(root: Path, folder: str) -> Path:
    put(root, f"{folder}/x.png")
    return root


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda p: layouts.cub200(p), r"expected class folders 001\.… to 200\.… of CUB-200-2011"),
        (lambda p: layouts.cub200(bird(p, "gulls")), "expected class folders 001"),
        (lambda p: layouts.cub200(bird(p, "001.Gull"), "test"), "cub200 has no image of a class for 'test'"),
        (lambda p: layouts.cub200(p / "none"), "no such folder"),
        (lambda p: layouts.read(p, layout="cub"), "layout: expected auto, folder, cub200"),
        (lambda p: layouts.read(p, split="all"), "split: expected"),
        (lambda p: layouts.cars196(bird(p, "one")), r"neither cars_annos\.mat nor 196 class folders, but 1 classes"),
        (lambda p: layouts.cars196(annotated(p, "image")), r"names .*000002\.png, but there is no"),
        (lambda p: layouts.cars196(annotated(p, "all")), "not a readable MATLAB file"),
        (lambda p: layouts.sop(p), r"Ebay_train\.txt: cannot be read: No such file"),
        (lambda p: layouts.sop(listed(p, HEAD), "train"), r"Ebay_train\.txt: names no image"),
        (lambda p: layouts.sop(listed(p, HEAD + "1 1\n"), "train"), r"line 2 has 2 columns; expected 4"),
        (lambda p: layouts.sop(listed(p, HEAD + "1 1 1 ../x.png"), "train"), "outside of its folder"),
        (lambda p: layouts.sop(listed(p, b"\xff\xfe\x00"), "train"), r"Ebay_train\.txt: line 1"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, read: Callable[[Path], Dataset], words: str) -> None:
    with pytest.raises((FileError, InputError), match=words):
        read(tmp_path)


# ----------------------------------------------------------------------------------------------------------- the real


def test_the_real_cub(data: Path) -> None:
    train, test = (layouts.read(data / "cub200", split=s) for s in ("train", "test"))
    assert (len(train), len(test)) == (5864, 5924)
    assert (len(train.classes), len(test.classes)) == (100, 100)
    learn, validation = train.split(0.2, last=True)
    assert (learn.classes[-1][:3], validation.classes[0][:3]) == ("080", "081")


@given(st.binary(max_size=60))
def test_whatever_a_list_holds_the_refusal_is_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("sop")
    (root / "Ebay_train.txt").write_bytes(content)
    with pytest.raises(LikewiseError):
        layouts.read(root, split="train")


# ------------------------------------------------------------------------------------------------------------- rivals


def test_instance_discrimination_contrasts_with_all_other_pictures() -> None:
    b = batch()
    task = rivals.Instance(2, 6, 20, tau=0.5).double()
    task(b)
    task.after(b)
    later = losses.Batch(unit(12, 4, 6, seed=9), b.y, b.ids)
    z, bank = later.z[:, 2], b.z[:, 2]
    logits = z @ bank.T / 0.5
    want = nn.functional.cross_entropy(logits, torch.arange(12))
    assert task(later).item() == pytest.approx(want.item(), rel=1e-6)


def test_clusters_are_found_and_told() -> None:
    rows = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4, dtype=torch.float64)[:, None, :]
    b = losses.Batch(rows, torch.arange(8), torch.arange(8), step=4)
    task = rivals.Cluster(0, 2, 8, 2, every=5).double()
    assert task(b).item() == 0.0  # nothing is known yet
    task.after(b)
    result = task.assigned.tolist()
    assert len({*result[:4]}) == len({*result[4:]}) == 1
    assert result[0] != result[4]
    assert task(b).item() == pytest.approx(math.log(2))  # a classifier that knows nothing


# ------------------------------------------------------------------------------------------------------------ presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name: str) -> None:
    config = preset(name)
    assert config.backbone in name.replace("cub200-", "").replace("cars196-", "").replace("sop-", "")
    assert config.heads == ("disc", "shared", "intra", "dance")
    assert config.dim == 512
    assert config.tau == 0.01


def test_decorrelation_is_in_our_units() -> None:
    """The paper's 1500, 300 and 100 are 0.092, 0.018 and 0.006 in units of D² c at D = 128."""
    names = ("cub200-resnet50", "cub200-inception-bn", "cars196-resnet50")
    assert [round(preset(n).rho, 3) for n in names] == [0.092, 0.018, 0.006]


def test_rates_drop_where_the_paper_says() -> None:
    config = preset("cub200-resnet50", steps=3500)
    assert [config.rate(s) for s in (0, 549, 550, 3499)] == [1.0, 1.0, 0.2, 0.2]


def test_unknown() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'cub200-resnet50'\?"):
        preset("cub-resnet50")


# ------------------------------------------------------------------------------------------------------------- tables

RECIPE = (
    "backbone=convnet,size=32,shortest=36,dim=32,classes=3,per_class=4,queue=32,norm=trained,steps=2,workers=1,frozen=0"
)
SMALL = Config(frozen=0)


def test_every_set_of_tasks_has_the_discriminative_one_and_four_heads() -> None:
    """[DiVA Tab. 2]: seven sets beside the baseline, each with the same total dimension."""
    variants = tables._task_subsets(SMALL)
    heads = [v.configs(SMALL, 0)[0].heads for v in variants[1:]]
    assert variants[0].name == "margin"
    assert all(h[0] == "disc" and len(h) == 4 for h in heads)
    assert len({frozenset(h) for h in heads}) == 7
    assert variants[-1].name == "disc + shared + intra + dance"


def test_separate_models_share_the_dimension_and_have_full_weight() -> None:
    """[DiVA Tab. 4]: a network for each task."""
    (separate,) = [v for v in tables._structures(SMALL) if v.separate]
    configs = separate.configs(SMALL, 7)
    assert [c.tasks for c in configs] == ["disc", "shared", "intra", "dance"]
    assert all(c.dim == 128 and c.seed == 7 for c in configs)
    assert [c.alpha(c.tasks) for c in configs] == [1.0] * 4


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine classes of six images: three are tested on, two chosen by."""
    root = tmp_path_factory.mktemp("classes")
    data = stripes(9, 6)
    for i, (item, label) in enumerate(zip(data.items, data.labels, strict=True)):
        file = root / f"class-{label}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(item).save(file)
    return root


def table(name: str) -> tables.Table:
    return next(t for t in TABLES if t.name == name)


@pytest.mark.slow
def test_a_table_runs_resumes_and_adds_seeds_up(classes: Path, tmp_path: Path) -> None:
    options = {"data": str(classes), "out": str(tmp_path), "settings": RECIPE}
    made = table("tab4")
    first = made.run(tables.Options(**options, seeds=1, variant="e"))  # separate models and others
    assert {row["variant"] for row in first.rows} >= {"separate models", "four discriminative heads"}
    assert all(0 <= row["test R@1"] <= 1 and row["seeds"] == 1 for row in first.rows)
    made.run(tables.Options(**options, seeds=1, first_seed=1, variant="separate"))
    files = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("seed-*.json")}
    both = made.run(tables.Options(**options, seeds=2, variant="separate", finished=True))
    assert both.rows[0]["seeds"] == 2
    assert both.rows[0]["difference"] == 0.0
    assert "test R@1 s.e." in both.columns
    assert files == {f: f.stat().st_mtime_ns for f in files}
    with pytest.raises(InputError, match="another recipe or other images"):
        made.run(tables.Options(**{**options, "settings": RECIPE + ",lr=0.5"}, seeds=1, variant="separate"))
    with pytest.raises(InputError, match="no training of long has finished"):
        table("differences").run(tables.Options(**options))


def test_the_pretrained_feature_is_measured_without_training(classes: Path, tmp_path: Path) -> None:
    record = table("start").run(tables.Options(data=str(classes), out=str(tmp_path), settings=RECIPE))
    assert [row["variant"] for row in record.rows] == ["frozen feature", "its principal axes, before training"]
    assert not list(tmp_path.iterdir())


def test_settings_are_named() -> None:
    assert tables._settings("lr=0.5,flip=false,tasks=disc") == {"lr": 0.5, "flip": False, "tasks": "disc"}
    with pytest.raises(InputError, match="settings: expected name=value"):
        tables._settings("speed=3")


def test_the_committed_long_training_can_be_read() -> None:
    """Paired differences of the files in docs/results/runs, as the table in the docs has them."""
    results = Path(__file__).parents[2] / "docs" / "results"
    written = {row["variant"]: row for row in json.loads((results / "diva-long.json").read_text())["rows"]}
    study = tables.Study("long", tables.Options(out=str(results / "runs" / "diva"), finished=True), SMALL, {})
    base = study.results(tables.MARGIN)
    for variant in (tables.MARGIN, tables.SMALL, tables.UNTRAINED):
        row = tables._row(variant.name, study.results(variant), base)
        assert row["seeds"] == 3
        for column in ("test R@1", "difference", "difference s.e.", "test R@1, step by validation"):
            assert row[column] == pytest.approx(written[variant.name][column])


def test_the_error_over_classes_is_that_of_class_means_where_classes_are_equal() -> None:
    values, labels = np.random.default_rng(0).normal(size=600), np.repeat(np.arange(30), 20)
    means = values.reshape(30, 20).mean(axis=1)
    expected = float(means.mean()), float(means.std(ddof=1) / math.sqrt(30))
    assert tables.mean_error_over_classes(values, labels) == pytest.approx(expected)
    order = np.random.default_rng(1).permutation(600)  # whatever their order, and whatever numbers they have
    assert tables.mean_error_over_classes(values[order], 2 * labels[order] + 5) == pytest.approx(expected)
    assert math.isnan(tables.mean_error_over_classes(values, 0 * labels)[1])


def test_the_error_over_classes_is_the_spread_that_is_seen() -> None:
    """Classes of unequal sizes, resampled: the estimate agrees with what means then spread by."""
    draw, result = np.random.default_rng(2), []
    for _ in range(200):
        labels = np.repeat(np.arange(60), draw.integers(5, 40, 60))
        values = draw.normal(0.1, 0.3, 60)[labels] + draw.normal(size=len(labels))
        result.append(tables.mean_error_over_classes(values, labels))
    means, errors = np.array(result).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.15)
