"""The same index on Milvus (milvus-lite): the same calls, the same results as in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likewise.errors import FileError, InputError, MissingExtra
from likewise.search import Collection, IndexReport
from likewise.store.index import Filter, Record
from likewise.store.milvus import STAMP, MilvusIndex, parse
from worlds.galleries import WHOLE, Patches, album, brute, detect_once, paint

pytest.importorskip("milvus_lite", reason="pip install 'likewise[test]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pymilvus", "ignore::DeprecationWarning:milvus_lite")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One file of milvus-lite for all tests: its server is a thread of this process, stopped at the end."""
    path = tmp_path_factory.mktemp("milvus") / "store.db"
    yield path
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_all()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_once(monkeypatch)


@pytest.fixture
def address(server: Path, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    return f"milvus://{server}/{name}"


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png"))


def ranking(collection: Collection, query: Any, k: int, **keywords: Any) -> list[tuple[str, float, int]]:
    return [(h.path, h.distance, h.rank) for h in collection.search(query, k, rerank=False, verify=0, **keywords)]


def test_results_equal_those_of_a_folder_and_of_a_loop(tmp_path: Path, address: str) -> None:
    photos, model = album(tmp_path / "photos"), Patches()
    query = paint(tmp_path / "query.png", 99)
    with (
        Collection.build(photos, address, model=model) as there,
        Collection.build(photos, tmp_path / "g", model=model) as here,
    ):
        assert there.report == IndexReport(24, 0, 0)
        assert len(there) == 24
        for keywords in ({}, {"label": "kind1"}, {"under": "deep"}, {"under": photos / "deep", "label": "kind3"}):
            for k in (1, 5, 100):
                assert ranking(there, query, k, **keywords) == ranking(here, query, k, **keywords), keywords
        names = list(here.index.names())
        assert there.index.features(names) == here.index.features(names)
        assert len(here.index.features(names)) == 24
        assert there.index.stamps(names) == here.index.stamps(names)
        want = brute(model, query, files(photos), 24)
        assert [path for path, _, _ in ranking(there, query, 24)] == [p for p, _ in want]
        assert ranking(there, [query, files(photos)[0]], 3) == ranking(here, [query, files(photos)[0]], 3)
        for keywords, said in (({"label": "kind7"}, "label: no photo"), ({"under": "no"}, "under: no photo")):
            with pytest.raises(InputError, match=said):
                ranking(there, query, 3, **keywords)
        assert there.check() == []
        assert set(there) == set(here)
        assert there.describe()["kind"] == "milvus flat"


def test_add_change_remove_reopen(tmp_path: Path, address: str) -> None:
    photos = album(tmp_path / "photos", classes=2, each=4)
    Collection.build(photos, address, model=Patches()).close()
    collection = Collection.open(address, Patches())
    assert collection.add(photos) == IndexReport(0, 0, 8)
    paint(files(photos)[1], 555)
    paint(photos / "new.png", 77)
    assert collection.add(photos) == IndexReport(1, 1, 7)
    assert len(collection) == 9
    assert ranking(collection, files(photos)[1], 1)[0][1] == pytest.approx(0, abs=1e-7)
    assert files(photos)[1] in collection
    assert collection.remove(files(photos)[1]) == 1
    assert files(photos)[1] not in collection
    assert collection.remove([photos / "deep", "none"]) == 3
    (photos / "new.png").unlink()
    assert collection.update(photos / "kind0").removed == 1
    collection.close()
    with Collection.open(address, Patches()) as again:
        assert sorted(again) == [str(p) for p in files(photos / "kind0")]


def test_ties_come_in_the_order_of_paths(tmp_path: Path, address: str) -> None:
    photos = album(tmp_path / "photos", classes=1, each=2)
    one = files(photos)[0]
    for i in range(30):
        shutil.copy(one, photos / f"n{i:02d}.png")
    with Collection.build(photos, address, model=Patches()) as collection:
        want = [str(p) for p in sorted([one, *photos.glob("n*.png")])]
        for k in (1, 4, 31):
            assert [path for path, _, _ in ranking(collection, one, k)] == want[:k]


def test_no_name_can_be_read_as_a_query(tmp_path: Path, address: str) -> None:
    """Quotes, percent signs, braces and bytes that are not UTF-8, in names, labels and folders."""
    photos = tmp_path / "photos"
    odd = ["it's", 'say "x"', "50%_off", "{l}", "a\\b", '" or label != "', os.fsdecode(b"gr\xfc\xdfe")]
    for i, name in enumerate(odd):
        paint(photos / name / f"{name}.png", i)
    with Collection.build(photos, address, model=Patches()) as collection:
        assert len(collection) == len(odd)
        for name in odd:
            path = photos / name / f"{name}.png"
            assert path in collection
            assert [p for p, _, _ in ranking(collection, path, 9, label=name)] == [str(path)]
            assert [p for p, _, _ in ranking(collection, path, 9, under=name)] == [str(path)]
        assert collection.remove([photos / odd[0], photos / odd[5]]) == 2
        assert len(collection) == len(odd) - 2


def test_another_model_and_another_collection_are_refused(tmp_path: Path, address: str, server: Path) -> None:
    from pymilvus import MilvusClient

    photos = album(tmp_path / "photos", classes=1, each=2)
    Collection.build(photos, address, model=Patches()).close()
    with pytest.raises(InputError, match="built with another model"):
        Collection.open(address, Patches(digest="d2"))
    with pytest.raises(InputError, match="built with another model"):
        Collection.build(photos, address, model=Patches(digest="d2"))
    with pytest.raises(FileError, match="no such collection"):
        Collection.open(f"milvus://{server}/none", Patches())
    with pytest.raises(InputError, match="kind: an index on Milvus is flat"):
        Collection.build(photos, f"milvus://{server}/other", model=Patches(), kind="ivf")
    client = MilvusClient(str(server))
    client.create_collection("strangers", dimension=4)
    client.close()
    with pytest.raises(FileError, match="not an index that this likewise writes"):
        Collection.open(f"milvus://{server}/strangers")


def test_entries_of_a_stranger_are_told(address: str, tmp_path: Path) -> None:
    photos = album(tmp_path / "photos", classes=1, each=2)
    with Collection.build(photos, address, model=Patches()) as collection:
        store = collection.index
        assert isinstance(store, MilvusIndex)
        entry = {"label": "", "folders": [], **dict.fromkeys(STAMP, 1), "vector": np.full(WHOLE, 9, np.float32)}
        store._client.insert(store.collection, [{**entry, "id": "x", "name": '"../../etc/passwd"'}])
        assert collection.check() == [
            f"{address}: 1 entries stand under another's key",
            f"{address}: 1 vectors are not of length 1",
        ]
        with pytest.raises(FileError, match="no plain path below the root"):
            ranking(collection, files(photos)[0], 5)
        with pytest.raises(FileError, match="no plain path"):
            store.put([Record("../x", 1, 1)], np.ones((1, WHOLE), np.float32))
        with pytest.raises(InputError, match=r"k: Milvus gives at most 16,383"):
            store.nearest(np.ones((1, WHOLE), np.float32), 20_000, Filter())


def test_addresses() -> None:
    assert parse("milvus://host:1234/birds") == ("http://host:1234", None, "birds", "milvus://host:1234/birds")
    assert parse("milvus://me:p%40ss@host/birds") == (
        "http://host:19530",
        "me:p@ss",
        "birds",
        "milvus://host:19530/birds",
    )
    for wrong in (
        "milvus://host:1/",
        "milvus://host",
        "milvus://host/a-b",
        "milvus:///tmp/file/birds",
        "http://x/y",
        "milvus://host:port/birds",
    ):
        with pytest.raises(InputError, match="out: expected"):
            parse(wrong)
    with pytest.raises(InputError) as caught:
        parse("milvus://me:secret@host/a-b")
    assert "secret" not in str(caught.value)


def test_no_server_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.store.milvus.PATIENCE", 1)
    with pytest.raises(FileError, match=r"milvus://127\.0\.0\.1:9/birds: .*connect") as caught:
        Collection.open("milvus://me:secret@127.0.0.1:9/birds")
    assert "secret" not in str(caught.value)


def test_without_pymilvus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'likewise\[milvus\]'"):
        Collection.open("milvus://host/birds")
