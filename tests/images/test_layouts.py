"""Layouts: published ones rebuilt in miniature, class folders, class-disjoint splits, and one clear sentence each."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images import layouts
from likewise.images.dataset import Dataset

PIXEL = np.full((2, 2, 3), 90, dtype=np.uint8)


def put(root: Path, *names: str) -> None:
    """Small pictures of these names, all the same."""
    first = root / names[0]
    media.write_image(first, PIXEL)
    for name in names[1:]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(first, root / name)


def names_of(dataset: Dataset) -> list[tuple[str, str]]:
    """(class, file) of each picture."""
    return [(dataset.classes[c], Path(p).name) for p, c in zip(dataset.items, dataset.labels, strict=True)]  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- data sets


@st.composite
def labelled(draw: st.DrawFn) -> Dataset:
    counts = draw(st.lists(st.integers(1, 5), min_size=4, max_size=15))
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(np.arange(len(counts)), counts))
    return Dataset(tuple(f"{i}.jpg" for i in range(len(labels))), labels, tuple(f"c{i}" for i in range(len(counts))))


@given(labelled(), st.floats(0.01, 0.99), st.integers(0, 50), st.booleans())
def test_a_split_is_complete_and_shares_no_class(dataset: Dataset, share: float, seed: int, last: bool) -> None:
    train, validation = dataset.split(share, seed, last=last)
    assert not set(train.classes) & set(validation.classes)
    assert set(train.classes) | set(validation.classes) == set(dataset.classes)
    assert sorted(names_of(train) + names_of(validation)) == sorted(names_of(dataset))
    assert len(validation.classes) == min(max(round(share * len(dataset.classes)), 2), len(dataset.classes) - 2)
    assert names_of(dataset.split(share, seed, last=last)[1]) == names_of(validation)


@given(labelled(), st.data())
def test_a_subset_keeps_its_order_and_renumbers_its_classes(dataset: Dataset, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, unique=True))
    part = dataset.subset(chosen)
    assert names_of(part) == [names_of(dataset)[i] for i in chosen]
    assert set(part.labels.tolist()) == set(range(len(part.classes)))
    assert part.counts.sum() == len(chosen) == len(part)


def test_the_last_classes_are_cubs_validation() -> None:
    dataset = Dataset([f"{i}" for i in range(100)], np.arange(100), tuple(f"{i + 1:03d}" for i in range(100)))  # type: ignore[arg-type]
    train, validation = dataset.split(0.2, last=True)
    assert (train.classes[0], train.classes[-1]) == ("001", "080")
    assert validation.classes == tuple(f"{i:03d}" for i in range(81, 101))
    assert dataset.split(20, last=True)[1].classes == validation.classes
    drawn = dataset.split(0.2)[1].classes
    assert drawn != validation.classes
    assert drawn != dataset.split(0.2, seed=1)[1].classes


def test_of_classes_counts_and_rare_ones() -> None:
    dataset = Dataset(tuple("abcdef"), np.array([0, 2, 2, 1, 2, 0]), ("x", "y", "z"))
    assert dataset.counts.tolist() == [2, 1, 3]
    assert dataset.rare() == ("y",)
    assert dataset.rare(3) == ("x", "y")
    part = dataset.of_classes([2, 1])
    assert part.items == tuple("bcde")
    assert part.classes == ("y", "z")
    assert part.labels.tolist() == [1, 1, 0, 1]
    assert repr(part) == "Dataset(pictures: 4 pictures of 2 classes)"


def test_labels_of_any_kind_become_the_classes() -> None:
    dataset = Dataset(tuple("abc"), np.array(["dog", "cat", "dog"]))  # type: ignore[arg-type]
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [1, 0, 1]


def test_data_sets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ShapeError, match="labels: expected 2, one a picture, got 1"):
        Dataset(tuple("ab"), np.array([0]), ("x",))
    with pytest.raises(InputError, match="labels: expected numbers in 0 … 0, got 0 to 1"):
        Dataset(tuple("ab"), np.array([0, 1]), ("x",))
    with pytest.raises(ShapeError, match=r"labels: expected .* got shape"):
        Dataset((), np.array([]))
    four = Dataset(tuple("abcd"), np.arange(4))
    for wrong in (0.0, 1.0, 0, 1, 3, True, -0.5):
        with pytest.raises(InputError, match="validation: expected a share"):
            four.split(wrong)
    with pytest.raises(InputError, match="validation: 3 classes cannot be divided"):
        Dataset(tuple("abc"), np.arange(3)).split()
    with pytest.raises(InputError, match="indices: expected numbers in 0 … 3, got 0 to 4"):
        four.of_classes([0, 4])
    with pytest.raises(ShapeError, match="indices: "):
        four.subset([])
    with pytest.raises(InputError, match="indices: expected whole numbers, got bool"):
        four.subset([True, False])


def test_classes_without_pictures_are_not_divided() -> None:
    """Nobody is left to validate on where the classes drawn are empty ones."""
    dataset = Dataset(tuple("abcd"), np.array([0, 2, 4, 6]), tuple("ABCDEFG"))
    for seed in range(10):
        train, validation = dataset.split(0.5, seed)
        assert sorted(train.classes + validation.classes) == ["A", "C", "E", "G"]
        assert len(validation.classes) == 2


# ------------------------------------------------------------------------------------------------------ class folders


def test_class_folders_nested_and_in_natural_order(tmp_path: Path) -> None:
    put(tmp_path, "b/p10.png", "b/p2.png", "birds/gull/x.png", "birds/x.png", "c10/x.png", "c9/x.png")
    (tmp_path / "b" / "notes.txt").write_text("not a picture")
    (tmp_path / "b" / ".hidden.png").write_bytes((tmp_path / "b" / "p2.png").read_bytes())
    dataset = layouts.folder(tmp_path)
    assert set(dataset.classes) == {"b", "birds", "birds/gull", "c9", "c10"}
    assert dataset.classes.index("c9") < dataset.classes.index("c10")
    assert [f for c, f in names_of(dataset) if c == "b"] == ["p2.png", "p10.png"]
    assert dataset.name == tmp_path.name
    assert names_of(layouts.read(tmp_path)) == names_of(dataset)


def test_subfolders_train_and_test_are_the_split(tmp_path: Path) -> None:
    put(tmp_path, "train/a/x.png", "train/b/x.png", "test/c/x.png")
    assert layouts.read(tmp_path, split="train").classes == ("a", "b")
    assert layouts.read(tmp_path, split="test").classes == ("c",)


def test_without_such_subfolders_all_is_for_training(tmp_path: Path) -> None:
    put(tmp_path, "a/x.png", "b/x.png")
    assert layouts.read(tmp_path, split="train").classes == ("a", "b")
    with pytest.raises(FileError, match=r"no folder 'test' in it; read it whole, and divide it by class with \.split"):
        layouts.read(tmp_path, split="test")


def test_folders_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no picture in this folder or below it"):
        layouts.folder(tmp_path)
    put(tmp_path, "x.png", "y.png")
    with pytest.raises(FileError, match="2 pictures and no class folders; move those of each class into a folder"):
        layouts.read(tmp_path)
    put(tmp_path, "a/z.png")
    with pytest.raises(FileError, match=r"x\.png: lies beside the class folders \(2 such\); move it into one of them"):
        layouts.read(tmp_path)
    with pytest.raises(FileError, match="no such folder"):
        layouts.folder(tmp_path / "nowhere")
    with pytest.raises(FileError, match="not a folder"):
        layouts.folder(tmp_path / "x.png")
    with pytest.raises(InputError, match=r"layout: expected auto, folder, cub200, .* got 'imagenet'"):
        layouts.read(tmp_path, layout="imagenet")
    with pytest.raises(InputError, match='split: expected "train", "test" or None'):
        layouts.read(tmp_path, split="val")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- CUB200


def cub_archive(root: Path, numbers: tuple[int, ...] = (1, 100, 101, 200)) -> Path:
    """The published archive with two pictures a class; ids do not follow the classes."""
    inner = root / "CUB_200_2011"
    files = [f"{n:03d}.Bird_{n}/B_{n}_{k}.png" for k in (1, 2) for n in reversed(numbers)]
    put(inner / "images", *files)
    (inner / "images.txt").write_text("".join(f"{i} {f}\n" for i, f in enumerate(files, 1)))
    labels = "".join(f"{i} {int(f[:3])}\n" for i, f in enumerate(files, 1))
    (inner / "image_class_labels.txt").write_text(labels)
    return root


def test_cub_as_published_and_by_its_folders_alone(tmp_path: Path) -> None:
    root = cub_archive(tmp_path)
    for given_path in (root, root / "CUB_200_2011"):
        train, test = (layouts.read(given_path, split=s) for s in ("train", "test"))
        assert train.classes == ("001.Bird_1", "100.Bird_100")
        assert test.classes == ("101.Bird_101", "200.Bird_200")
        assert train.name == "cub200"
        assert [f for _, f in names_of(train)] == ["B_1_1.png", "B_1_2.png", "B_100_1.png", "B_100_2.png"]
        assert len(layouts.cub200(given_path)) == 8
    bare = layouts.cub200(root / "CUB_200_2011" / "images", "test")
    assert names_of(bare) == names_of(layouts.cub200(root, "test"))


def test_bare_cub_folders_are_recognised_when_all_are_there(tmp_path: Path) -> None:
    put(tmp_path, *(f"{n:03d}.Bird_{n}/x.png" for n in range(1, 201)))
    assert layouts.read(tmp_path, split="train").classes[-1] == "100.Bird_100"
    shutil.rmtree(tmp_path / "200.Bird_200")
    assert layouts.read(tmp_path).name == tmp_path.name  # somebody's own folders
    assert len(layouts.read(tmp_path, layout="cub200", split="test").classes) == 99


def test_cub_lists_that_are_wrong_are_named(tmp_path: Path) -> None:
    inner = cub_archive(tmp_path) / "CUB_200_2011"
    (inner / "images" / "001.Bird_1" / "B_1_1.png").unlink()
    with pytest.raises(FileError, match=r"images\.txt: names .*B_1_1\.png, but there is no such file \(1 missing\)"):
        layouts.cub200(tmp_path)
    (inner / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(FileError, match="do not list the same pictures"):
        layouts.cub200(tmp_path)
    (inner / "image_class_labels.txt").write_text("1\n")
    with pytest.raises(FileError, match=r"image_class_labels\.txt: line 1 has 1 columns; expected 2"):
        layouts.cub200(tmp_path)
    (inner / "images.txt").write_text("1 ../../etc/passwd\n")
    (inner / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(FileError, match="outside of its folder"):
        layouts.cub200(tmp_path)
    (inner / "images.txt").write_text("1 100.Bird_100/B_100_1.png\n")
    (inner / "image_class_labels.txt").write_text("1 one\n")
    with pytest.raises(FileError, match="expected the number of a class, got 'one'"):
        layouts.cub200(tmp_path)


def test_folders_that_are_not_cubs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"neither images\.txt nor class folders"):
        layouts.cub200(tmp_path)
    put(tmp_path, "gulls/x.png")
    with pytest.raises(FileError, match="not in a class folder of CUB-200-2011"):
        layouts.cub200(tmp_path)
    put(tmp_path / "other", "001.Gull/x.png")
    with pytest.raises(FileError, match="cub200 has no picture of a class for 'test'"):
        layouts.cub200(tmp_path / "other", "test")


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
    shutil.rmtree(tmp_path / "Car 001")
    with pytest.raises(FileError, match=r"neither cars_annos\.mat nor 196 class folders, but 195 classes"):
        layouts.cars196(tmp_path)


def test_annotations_of_cars_that_are_damaged_or_point_nowhere(tmp_path: Path) -> None:
    root = cars(tmp_path)
    (root / "car_ims" / "000002.png").unlink()
    with pytest.raises(FileError, match=r"cars_annos\.mat: names .*000002\.png, but there is no such file"):
        layouts.cars196(root)
    (root / "cars_annos.mat").write_bytes(b"no matrix at all")
    with pytest.raises(FileError, match="not a readable MATLAB file: it has no header"):
        layouts.cars196(root)


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
    assert train.rare() == ("chair_final/2",)
    assert layouts.read(root / "Stanford_Online_Products", split="test").classes == ("chair_final/3",)
    assert len(layouts.sop(root)) == 4


def test_lists_of_sop_that_are_missing_empty_or_wrong(tmp_path: Path) -> None:
    inner = products(tmp_path) / "Stanford_Online_Products"
    (inner / "Ebay_test.txt").unlink()
    assert len(layouts.sop(tmp_path, "train")) == 3
    with pytest.raises(FileError, match=r"Ebay_test\.txt: cannot be read: No such file"):
        layouts.sop(tmp_path)
    (inner / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n")
    with pytest.raises(FileError, match=r"Ebay_train\.txt: names no picture"):
        layouts.sop(tmp_path, "train")
    (inner / "Ebay_train.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"Ebay_train\.txt: cannot be read"):
        layouts.sop(tmp_path, "train")


# ----------------------------------------------------------------------------------------------------------- Omniglot


def alphabets(root: Path, zipped: bool) -> Path:
    for part, names in (("small1", ("Latin", "Korean")), ("small2", ("Latin", "Greek", "Tagalog"))):
        folder = root / f"images_background_{part}"
        put(folder, *(f"{a}/character0{c}/{k}.png" for a in names for c in (1, 2) for k in (1, 2)))
        if zipped:
            with zipfile.ZipFile(root / f"{folder.name}.zip", "w") as archive:
                for file in sorted(folder.rglob("*.png")):
                    archive.write(file, file.relative_to(root))
                archive.writestr("__MACOSX/images/._x.png", b"junk")
            shutil.rmtree(folder)
    return root


@pytest.mark.parametrize("zipped", [True, False])
def test_omniglot_from_zips_or_unpacked(tmp_path: Path, zipped: bool) -> None:
    root = alphabets(tmp_path, zipped)
    train, test = (layouts.read(root, split=s) for s in ("train", "test"))
    assert train.classes == ("Korean/character01", "Korean/character02", "Latin/character01", "Latin/character02")
    assert test.classes == ("Tagalog/character01", "Tagalog/character02")
    assert (len(train), len(test), len(layouts.omniglot(root))) == (8, 4, 12)
    if zipped:
        np.testing.assert_array_equal(np.asarray(train.items[0]), PIXEL[:, :, 0])
    else:
        np.testing.assert_array_equal(media.read_array(train.items[0]), PIXEL)  # type: ignore[arg-type]


def test_full_omniglot_has_its_own_split(tmp_path: Path) -> None:
    put(tmp_path, "images_background/Latin/character01/x.png", "images_evaluation/Tengwar/character01/x.png")
    assert layouts.read(tmp_path, split="train").classes == ("Latin/character01",)
    assert layouts.read(tmp_path, split="test").classes == ("Tengwar/character01",)


def test_zips_of_omniglot_that_are_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="give the folder that holds the sets of Omniglot"):
        layouts.omniglot(tmp_path)
    file = tmp_path / "images_background_small1.zip"
    file.write_bytes(b"PK no zip")
    with pytest.raises(FileError, match=r"small1\.zip: damaged zip"):
        layouts.omniglot(tmp_path, "train")
    with pytest.raises(FileError, match=r"neither images_background_small2\.zip nor a folder"):
        layouts.omniglot(tmp_path, "test")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("small/Latin/character01/1.png", b"no picture")
    with pytest.raises(FileError, match=r"small1\.zip: small/Latin/character01/1\.png"):
        layouts.omniglot(tmp_path, "train")
    whole = alphabets(tmp_path / "whole", zipped=True) / "images_background_small1.zip"
    stored = bytearray(whole.read_bytes())
    stored[60:90] = bytes(30)
    whole.write_bytes(stored)
    with pytest.raises(FileError, match="small1"):
        layouts.omniglot(whole.parent, "train")


def test_a_zip_that_declares_too_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = alphabets(tmp_path, zipped=True)
    monkeypatch.setattr(media, "MOST_ARRAY_BYTES", 100)
    with pytest.raises(FileError, match="more than the 100 allowed"):
        layouts.omniglot(root, "train")


# ----------------------------------------------------------------------------------------------------------- the real


def test_the_real_cub(data: Path) -> None:
    train, test = (layouts.read(data / "cub200", split=s) for s in ("train", "test"))
    assert (len(train), len(test)) == (5864, 5924)
    assert (len(train.classes), len(test.classes)) == (100, 100)
    learn, validation = train.split(0.2, last=True)
    assert (learn.classes[-1][:3], validation.classes[0][:3]) == ("080", "081")


def test_the_real_omniglot_is_black_ink_on_white(data: Path) -> None:
    test = layouts.read(data / "omniglot", split="test")
    assert (len(test), len(test.classes)) == (2120, 106)
    assert set((test.counts).tolist()) == {20}
    assert not any(c.startswith(("Greek", "Latin")) for c in test.classes)
    picture = np.asarray(test.items[0])
    assert (picture.shape, picture.dtype) == ((105, 105), np.uint8)
    assert set(np.unique(picture)) == {0, 255}
    assert (picture == 255).mean() > 0.8


@given(st.binary(max_size=60))
def test_whatever_a_list_holds_the_refusal_is_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("sop")
    (root / "Ebay_train.txt").write_bytes(content)
    with pytest.raises(LikewiseError):
        layouts.read(root, split="train")
