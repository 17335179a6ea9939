"""The commands of weights: what ships and what is published, listed, fetched, added and checked."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from likewise.cli import main, weights
from likewise.nn import published
from nn.served import BODY, ENTRY, SHA256, Served, own_places, publish, serve

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cache(monkeypatch: Patch, tmp_path: Path) -> Path:
    return own_places(monkeypatch, tmp_path)


@pytest.fixture
def server() -> Iterator[Served]:
    with serve() as served:
        yield served


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(["weights", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_all_are_listed(capsys: Capture, monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert set(published.PUBLISHED) < set(lines)
    assert lines["pixels-aligner"].endswith("MB  likewise  flow between photos under any light (Apache-2.0)")
    assert " 6.25 MB " in lines["xfeat"]
    assert "  wheel  " in lines["xfeat"]
    assert lines["r2d2"].endswith("LIFE's own feature (CC BY-NC-SA 3.0: non-commercial use only)")
    assert "  not here  " in lines["r2d2"]
    assert " –  not here" in lines["inception-bn"]
    (tmp_path / "bn_inception-52deb4733.pth").write_bytes(bytes(2_340_000))
    monkeypatch.setenv("LIKEWISE_WEIGHTS", str(tmp_path))
    assert " 2.34 MB  LIKEWISE_WEIGHTS  " in run(capsys, "list")[1]
    rows = {r["name"]: r for r in json.loads(run(capsys, "list", "--json")[1])["weights"]}
    assert rows["vgg16"]["expected"].startswith("397923af")
    assert rows["vgg16"]["file"] is None
    assert rows["inception-bn"]["file"] == str(tmp_path / "bn_inception-52deb4733.pth")
    assert rows["superpoint"]["restriction"]


def test_fetch(capsys: Capture, monkeypatch: Patch, server: Served, cache: Path) -> None:
    bound = replace(ENTRY, name="bound", file="bound.pt", url=server.url, licence="Own", restriction="research only")
    publish(monkeypatch, replace(ENTRY, url=server.url), bound)
    code, out, err = run(capsys, "fetch", "tiny", "bound")
    assert (code, out) == (0, f"tiny: {cache / 'tiny.pt'}\nbound: {cache / 'bound.pt'}\n")
    assert err == "likewise: the weights bound (Own) are for research only\n"
    assert (cache / "bound.pt").read_bytes() == BODY
    assert run(capsys, "fetch", "tiny")[:2] == (0, f"tiny: {cache / 'tiny.pt'}\n")
    assert len(server.asked) == 2


def test_progress_is_shown_to_somebody_who_watches(
    capsys: Capture, monkeypatch: Patch, server: Served, cache: Path
) -> None:
    publish(monkeypatch, url=server.url)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert main(["weights", "fetch", "tiny"]) == 0
    assert "tiny" in screen.getvalue()
    assert "300.0/300.0 kB" in screen.getvalue()


@pytest.mark.parametrize(
    ("words", "served", "message"),
    [
        (["fetch", "tiny"], {"status": 404}, "cannot be reached (status 404); get it in another way and put it at "),
        (["fetch", "tiny"], {"body": b"y" * len(BODY)}, f"is not that of tiny, {SHA256[:12]}…; nothing was kept"),
        (["fetch", "tiny"], {"cuts": [9, 0]}, "cut off after 9 bytes; `likewise weights fetch tiny` resumes"),
        (["fetch", "tiny", "tinny"], {}, "got 'tinny'; did you mean 'tiny'?"),
        (
            ["fetch", "local"],
            {},
            "the weights local cannot be fetched: unzip it, then `likewise weights add local FILE`",
        ),
        (["fetch"], {}, "Missing argument 'NAME...' (likewise weights fetch --help)"),
        (["add", "tiny"], {}, "Missing argument 'FILE' (likewise weights add --help)"),
        (["add", "tiny", "none.pt"], {}, "none.pt: no such file"),
        (["add", "tinny", "none.pt"], {}, "did you mean 'tiny'?"),
        (["add", "local", __file__], {}, "is not that of local, 000000000000…"),
    ],
)
def test_an_error_is_one_line_and_exit_2(
    capsys: Capture,
    monkeypatch: Patch,
    server: Served,
    cache: Path,
    words: list[str],
    served: dict[str, object],
    message: str,
) -> None:
    local = replace(ENTRY, name="local", file="local.pt", sha256="0" * 64, hint="unzip it")
    publish(monkeypatch, replace(ENTRY, url=server.url), local)
    vars(server).update(served)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(cache.glob("*.pt"))
    assert served or not server.asked


def test_add(capsys: Capture, monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    free, bound = replace(ENTRY, file="a.pt"), replace(ENTRY, name="bound", restriction="research only")
    unknown = replace(ENTRY, name="unknown", file="u.pt", sha256=None)
    publish(monkeypatch, free, bound, unknown)
    (tmp_path / "mine").write_bytes(BODY)
    assert run(capsys, "add", "tiny", str(tmp_path / "mine")) == (0, f"tiny: {cache / 'a.pt'}\n", "")
    code, out, err = run(capsys, "add", "bound", str(tmp_path / "mine"))
    assert (code, out) == (0, f"bound: {cache / 'tiny.pt'}\n")
    assert err == "likewise: the weights bound (MIT) are for research only\n"
    assert (
        f"u.pt (no digest is published; SHA-256 {SHA256})" in run(capsys, "add", "unknown", str(tmp_path / "mine"))[1]
    )


def test_check(capsys: Capture, monkeypatch: Patch, tmp_path: Path, cache: Path) -> None:
    code, out, _ = run(capsys, "check", "--json")
    assert code == 0
    cards = json.loads(out)["weights"]
    assert all(card["sha256"] == card["expected"] for card in cards)
    assert all("Apache-2.0" in card["licence"] for card in cards if "licence" in card)
    assert {"xfeat", "xfeat-lighterglue"} < {card["name"] for card in cards}
    publish(monkeypatch)
    hub = tmp_path / "torch" / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    (hub / "tiny.pt").write_bytes(b"of somebody else")
    assert run(capsys, "check")[0] == 0
    cache.mkdir(parents=True)
    (cache / "tiny.pt").write_bytes(BODY)
    many = len(cards) - 2 + 1  # what ships, and the one
    assert run(capsys, "check") == (0, f"{many} files have the SHA-256 they should\n", "")
    (cache / "tiny.pt").write_bytes(b"damaged")
    code, out, err = run(capsys, "check")
    assert (code, out) == (2, "")
    assert f"{cache / 'tiny.pt'}: SHA-256 " in err
    shutil.copytree(Path(cards[0]["file"]).parent, tmp_path / "weights")
    (tmp_path / "weights" / "fashion.safetensors").write_bytes(b"other")
    monkeypatch.setattr(weights.resources, "files", lambda _: tmp_path)
    code, _, err = run(capsys, "check")
    assert code == 2
    assert "fashion.safetensors: SHA-256 " in err
    assert err.endswith("; install likewise again (and 1 more)\n")
