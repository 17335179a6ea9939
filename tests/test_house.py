"""The house itself: layers, figures that are never typed by hand, no assert in the library, one thread in tests."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from likewise import cli
from likewise.errors import InputError
from likewise.papers import machine

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@functools.cache
def script(name: str, folder: str = "benchmarks") -> ModuleType:
    """A module of a folder that is not a package."""
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------------- the layers


def test_imports_go_one_way() -> None:
    pytest.importorskip("importlinter", reason="pip install 'likewise[check]'")
    run = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT / "src")))
def test_the_library_never_asserts_and_never_unpickles(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), f"{file.name}:{node.lineno} asserts; raise an error of likewise.errors"
        if isinstance(node, ast.Call):
            words = ast.unparse(node)
            assert not re.match(r"(pickle|dill|joblib|shelve)\.(load|loads|open|Unpickler)\b", words), words
            assert not re.match(r"(torch|np|numpy)\.load\b", words) or SAFE_LOAD.search(words), words


SAFE_LOAD = re.compile(r"weights_only=True|allow_pickle=False")


def test_every_module_says_what_it_is() -> None:
    silent = [
        f.name
        for f in SOURCES
        if f.read_text().strip() and not ast.get_docstring(ast.parse(f.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    assert not {f.stem for f in SOURCES} & {"utils", "misc", "helpers", "common"}


def test_torch_stays_below_the_cuda_builds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "torch>=2.8,<2.14" in project["dependencies"]
    assert {"studio", "sfm", "cluster", "milvus", "video"} <= set(project["optional-dependencies"])


def test_the_changelog_and_the_citation_know_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## (Unreleased|\[?{re.escape(version)})", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_tests_run_on_one_thread() -> None:
    import torch

    assert torch.get_num_threads() == 1


# ------------------------------------------------------------------------------------------------------ the figures


def test_no_table_is_stale() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_table_of_the_long_training_is_what_its_runs_gave() -> None:
    results = ROOT / "docs" / "results"
    table = json.loads((results / "diva-long.json").read_text(encoding="utf-8"))
    files = sorted((results / "runs" / "diva" / "long").glob("*/seed-*.json"))
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert sum(row["seeds"] for row in table["rows"]) == len(runs) > 0
    for row in table["rows"]:
        mine = [run for run in runs if run["variant"] == row["variant"]]
        last = [run["test"][-1] for run in mine]
        assert row["test by seed"] == last
        assert row["test R@1"] == pytest.approx(np.mean(last))
        assert sorted({run["commit"] for run in mine}) == row["commits of the runs"]
        for run in mine:
            assert run["config"]["seed"] == run["seed"]
            assert {len(run[part]) for part in ("steps", "train", "validation", "test")} == {len(run["steps"])}
            for part, hits in run.get("hits", {}).items():
                assert np.mean(hits) == pytest.approx(run[part][-1], abs=1e-3)  # passes of other sizes, other last bits


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small repository with a README that asks for a table and a figure."""
    (tmp_path / "docs").mkdir()
    text = "before\n<!-- table:speed -->\nold\n<!-- /table -->\n"
    text += "after <!-- figure:speed:ours:rate -->?<!-- /figure --> end\n"
    (tmp_path / "README.md").write_text(text)
    return tmp_path


def test_a_table_that_was_never_measured_says_so(house: Path) -> None:
    tables = script("tables", "docs")
    assert tables.main([], house) == 0
    text = (house / "README.md").read_text()
    assert "| not measured yet |" in text
    assert "--> not" not in text
    assert "rate -->not measured yet<!--" in text
    assert text.startswith("before\n")
    assert text.endswith(" end\n")


def test_tables_are_filled_from_results_and_stale_ones_are_found(house: Path) -> None:
    tables, write = script("tables", "docs"), script("record")
    results = house / "benchmarks" / "results"
    rows = [{"method": "ours", "rate": np.float64(123456.7), "error": 1.23456e-7}, {"method": "a|b", "rate": 1.0}]
    write.record("speed", ["method", "rate", "error"], rows, "python benchmarks/speed.py", "one thread", folder=results)
    assert tables.main(["--check"], house) == 1
    assert tables.main([], house) == 0
    assert tables.main(["--check"], house) == 0
    text = (house / "README.md").read_text()
    assert "| method | rate | error |\n| --- | ---: | ---: |\n| ours | 123,457 | 1.23e-07 |\n| a\\|b | 1 |  |" in text
    assert "One thread. `python benchmarks/speed.py`, commit " in text
    assert "after <!-- figure:speed:ours:rate -->123,457<!-- /figure --> end" in text
    write.record("speed", ["method", "rate"], [{"method": "ours", "rate": 5}], "again", folder=results)
    assert [json.loads(line)["command"] for line in (results / "speed.jsonl").read_text().splitlines()][1:] == ["again"]
    assert tables.main(["--check"], house) == 1  # the last run counts


@pytest.mark.filterwarnings("ignore::likewise.errors.DegeneracyWarning")
def test_what_papers_writes_fills_a_table(house: Path) -> None:
    file = house / "docs" / "results" / "polarity-fig11.json"
    file.parent.mkdir()
    assert cli.main(["papers", "polarity", "fig11", "--n", "8", "--banks", "2", "--out", str(file)]) == 0
    page = house / "README.md"
    page.write_text("<!-- table:polarity-fig11; rows: toy; columns: rho; cell: ess -->\n<!-- /table -->\n")
    script("tables", "docs").main([], house)
    text = page.read_text()
    assert "| toy | -0.5 | 0 | 0.5 | 1 |" in text
    assert "Ess by rho. mean ± s.e. over 2 independent banks" in text
    assert "`likewise papers polarity fig11 --n 8 --banks 2 --out " in text
    assert re.search(r"`, commit [\w+]+, \d{4}-\d\d-\d\d; .* cores, Python ", text)


def test_a_long_table_can_be_turned(house: Path) -> None:
    tables, write = script("tables", "docs"), script("record")
    rows = [{"method": m, "γ": g, "rate": r} for m, g, r in (("a", 0.1, 1), ("b", 0.1, 2), ("a", 0.5, 3))]
    write.record("speed", ["method", "γ", "rate"], rows, "c", folder=house / "benchmarks" / "results")
    asked = "<!-- table:speed; rows: method; columns: γ; cell: rate -->\n<!-- /table -->\n"
    (house / "README.md").write_text(asked + "<!-- figure:speed:a, 0.5:rate -->?<!-- /figure -->")
    tables.main([], house)
    text = (house / "README.md").read_text()
    assert "| method | 0.1 | 0.5 |\n| --- | ---: | ---: |\n| a | 1 | 3 |\n| b | 2 |  |\n" in text
    assert text.endswith("-->3<!-- /figure -->")
    assert tables.main(["--check"], house) == 0


def test_a_figure_that_the_results_lack_is_an_error(house: Path) -> None:
    tables, write = script("tables", "docs"), script("record")
    write.record("speed", ["method"], [{"method": "x"}], "c", folder=house / "benchmarks" / "results")
    with pytest.raises(SystemExit, match="no row 'ours'"):
        tables.main([], house)


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (["a"], [], "expected at least one"),
        (["b"], [{"a": 1}], "no row has 'b'"),
        (["a"], [{"a": float("nan")}], "finite"),
        (["a"], [{"a": np.float64("inf")}], "finite"),
    ],
)
def test_a_wrong_record_is_refused_and_nothing_is_written(
    tmp_path: Path, columns: list[str], rows: list[dict[str, float]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        script("record").record("x", columns, rows, "c", folder=tmp_path)
    with pytest.raises(InputError, match="name"):
        script("record").record("../x", ["a"], [{"a": 1}], "c", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_names_no_host() -> None:
    import platform

    words = machine()
    assert "cores" in words
    assert not platform.node() or platform.node() not in words


# -------------------------------------------------------------------------------------------------------- the papers


def test_citations_are_read() -> None:
    cited = script("conf", "docs")._cited
    assert cited("MLML", "x [MLML Eq. 4–7, 11]; y [MLML Eq. 15, without its sum]") == {"4", "5", "6", "7", "11", "15"}
    assert cited("LIFE", "x [MLML Eq. 4]") == set()
    assert cited("MLML", "as printed [MLML Algorithm 1]") == {"Algorithm-1"}
    assert cited("Polarity", "[Polarity Eq. 5; A.4], [Polarity Fig. 11]") == {"5", "A.4", "Fig-11"}
    assert cited("Polarity", "[MLML Eq. 5]") == set()


@pytest.mark.parametrize("equation", [*map(str, range(4, 18)), "Algorithm-1"])
def test_every_equation_of_mlml_is_cited_by_a_function(equation: str) -> None:
    assert script("conf", "docs").cites(f"MLML {equation}")


@pytest.mark.parametrize("cited", ["5", "7", "Algorithm-1", "Algorithm-2", "A.4", "A.5", "C.3", "C.4", "C.5", "Fig-13"])
def test_every_part_of_polarity_is_cited_by_a_function(cited: str) -> None:
    assert script("conf", "docs").cites(f"Polarity {cited}"), f"no docstring cites {cited} of Polarity"


@pytest.mark.parametrize("paper", ["Multi-Level Metric Learning", "Polarity Sampling"])
@pytest.mark.parametrize("number", range(1, 8))
def test_every_erratum_is_pinned_by_a_test(paper: str, number: int) -> None:
    conf = script("conf", "docs")
    parts = re.split(r"^## ", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (part,) = (part for part in parts if part.startswith(paper))
    (row,) = re.findall(rf"^\| {number} \|.*$", part, re.MULTILINE)
    (words,) = re.findall(r"\{tests\}`([^`]+)`", row)
    assert conf.tests(words), f"erratum {number}: no test answers to {words!r}"


def test_every_test_that_the_papers_name_exists() -> None:
    conf = script("conf", "docs")
    for page in ("papers.md", "errata.md"):
        for words in conf.TESTS.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
            for word in words.split():
                assert conf.tests(word), f"{page}: no test answers to {word!r}"
    assert conf.tests("no_such_word_anywhere_" + "at_all") == []


def test_no_page_bears_the_name_of_one_that_sphinx_writes_itself() -> None:
    """Such a page would be overwritten without a word."""
    taken = {"search", "genindex", "modindex", "py-modindex"}
    assert not taken & {p.stem for p in (ROOT / "docs").rglob("*.md")}


def test_every_file_that_the_architecture_names_is_there() -> None:
    """Paths of the walks, and bare names, which must be somewhere in the library."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walks = text[text.index("## Five walks") :]
    names = {n for n in re.findall(r"`([\w/]+\.py)`", walks) if not n.startswith(("tests/", "tools/"))}
    known = {str(f.relative_to(ROOT / "src" / "likewise")) for f in SOURCES}
    missing = [n for n in sorted(names) if not any(k == n or k.endswith(f"/{n}") for k in known)]
    assert len(names) > 20
    assert missing == []
