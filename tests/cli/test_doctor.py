"""The doctor finds what is sound and what is broken, and its exit code says which."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
    code, found = findings(capsys)
    assert code == 0, [f for f in found.values() if f["state"] == "broken"]
    assert found["torch"]["state"] == "ok"
    assert found["video"]["part"] == "extras"
    assert found["data"]["state"] == "note"
    assert set(doc.SELF_TESTS) <= set(found)


def test_it_prints_for_people_too(capsys) -> None:
    assert main(["doctor"]) == 0
    assert "everything works" in capsys.readouterr().out


def test_a_wrong_solver_is_found(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    right = transport.exact
    monkeypatch.setattr(transport, "exact", lambda C, a, b: (1.5 * right(C, a, b)[0], right(C, a, b)[1]))
    code, found = findings(capsys)
    assert code == 1
    assert found["smoothed transport against exact"]["state"] == "broken"
    assert "exact transport costs" in found["smoothed transport against exact"]["detail"]


def test_a_plan_without_its_marginals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.Solutions, "plan", lambda self, k: np.full(tuple(self.sizes[k]), 1.0))
    assert "marginals" in (doc._smoothed_tends_to_exact() or "")


def test_a_missing_dependency_is_broken_and_a_missing_extra_is_not() -> None:
    assert doc._version("no-such-package", "no-such-package>=1").state == "broken"
    assert "pip install 'no-such-package>=1'" in doc._version("no-such-package", "no-such-package>=1").detail
    assert doc._extra("video", ["no-such-package"]).state == "note"


def test_requirements_are_read_to_their_name() -> None:
    words = ["torch<2.14,>=2.8", "av>=12; extra == 'video'", "a_b-c[d]~=1", "x (>=2)", "plain"]
    assert [doc._package(w) for w in words] == ["torch", "av", "a_b-c", "x", "plain"]


def test_a_data_folder_that_is_none_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIKEWISE_DATA", str(tmp_path / "nothing"))
    assert doc._data_folder().state == "broken"
    (tmp_path / "eth80").mkdir()
    monkeypatch.setenv("LIKEWISE_DATA", str(tmp_path))
    assert "eth80" in doc._data_folder().detail


def test_a_test_that_raises_is_broken() -> None:
    def explode() -> str | None:
        raise ZeroDivisionError("x")

    assert doc._try("x", explode).detail == "ZeroDivisionError: x"
