"""The doctor finds what is sound and what is broken, and its exit code says which."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from likewise.cli import doctor as doc
from likewise.cli import main
from likewise.sets.transport import solvers as transport


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIKEWISE_DATA", raising=False)


def findings(capsys) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] == (code == 0)
    return code, {f["name"]: f for f in report["findings"]}


def test_this_installation_is_sound(capsys) -> None:
    code, result = findings(capsys)
    assert code == 0, [f for f in result.values() if f["state"] == "broken"]
    assert result["torch"]["state"] == "ok"
    assert result["video"]["part"] == "extras"
    assert result["data"]["state"] == "note"
    assert set(doc.SELF_TESTS) <= set(result)


def test_it_prints_for_people_too(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc, "SELF_TESTS", {"x": lambda: 1 / 0})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "ZeroDivisionError: division by zero" in out
    assert "1 broken" in out


def test_a_wrong_solver_is_found(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    right = transport.exact
    monkeypatch.setattr(transport, "exact", lambda C, a, b: (1.5 * right(C, a, b)[0], right(C, a, b)[1]))
    code, result = findings(capsys)
    assert code == 1
    assert result["smoothed transport against exact"]["state"] == "broken"
    assert "exact transport costs" in result["smoothed transport against exact"]["detail"]


def test_requirements_are_read_to_their_name() -> None:
    words = ["torch<2.14,>=2.8", "av>=12; extra == 'video'", "a_b-c[d]~=1", "x (>=2)", "plain"]
    assert [doc._package(w) for w in words] == ["torch", "av", "a_b-c", "x", "plain"]


def test_a_missing_dependency_is_broken_and_a_missing_extra_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["no-such-package>=1", "no-such-extra>=2; extra == 'video'"]
    monkeypatch.setattr(doc.metadata, "requires", lambda _: wanted)
    broken, note = [*doc._versions()][-1], next(iter(doc._extras()))
    assert (broken.state, broken.detail) == ("broken", "not installed; pip install 'no-such-package>=1'")
    assert (note.state, note.detail) == ("note", "without no-such-extra; pip install 'likewise[video]'")


def test_a_data_folder_that_is_none_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIKEWISE_DATA", str(tmp_path / "nothing"))
    assert next(doc._folders()).state == "broken"
    (tmp_path / "eth80").mkdir()
    monkeypatch.setenv("LIKEWISE_DATA", str(tmp_path))
    assert "eth80" in next(doc._folders()).detail


def test_published_weights_are_counted_and_a_folder_that_is_none_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("LIKEWISE_WEIGHTS", str(tmp_path))
    finding = [*doc._folders()][-1]
    assert (finding.name, finding.state) == ("weights", "ok")
    assert finding.detail == "2 of 20 published files are here (xfeat, xfeat-lighterglue)"
    monkeypatch.setenv("LIKEWISE_WEIGHTS", os.pathsep.join([str(tmp_path), str(tmp_path / "none")]))
    assert (doc._weights().state, doc._weights().detail) == (
        "broken",
        f"LIKEWISE_WEIGHTS: {tmp_path}/none is not a folder",
    )
