"""`likewise papers`: tables are listed, found by name, run with their own options, and written as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from likewise.papers import PAPERS, Record, Table
from likewise.train.options import option
from worlds.command import Runner

PREFIX = ("papers",)


@dataclass(frozen=True)
class Options:
    """One number."""

    seeds: int = option(2, "how many seeds", low=1)


def made(options: Options) -> Record:
    rows = [{"method": "ours", "R@1": 0.5 + i} for i in range(options.seeds)]
    return Record(["method", "R@1", "note"], [*rows, {"method": "theirs", "note": "as printed"}])


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("tab2", "Tab. 2: which tasks", Options, made)
    monkeypatch.setattr("likewise.papers.diva.TABLES", (table,), raising=False)
    monkeypatch.setattr("likewise.papers.life.TABLES", (), raising=False)


def test_tables_are_listed(run: Runner) -> None:
    assert "diva tab2" in run.good().out
    assert run.good("diva").out == "diva tab2  Tab. 2: which tasks\n"
    assert run.good("life").out == "no tables yet\n"


def test_a_table_is_printed_and_written(run: Runner, here: Path) -> None:
    ran = run.good("diva", "tab2", "--seeds", 1, "--out", "t.json")
    assert ran.out.splitlines()[0].strip() == "Tab. 2: which tasks"
    assert ran.out.splitlines()[-1].split() == ["theirs", "–", "as", "printed"]
    record = json.loads(Path("t.json").read_text())
    assert (record["name"], record["columns"]) == ("diva-tab2", ["method", "R@1", "note"])
    assert record["command"] == "likewise papers diva tab2 --seeds 1 --out t.json"
    assert record.keys() >= {"commit", "date", "machine", "note"}
    assert run.good("diva", "tab2", "--seeds", 1, "--json").json["rows"] == record["rows"]
    assert "--seeds" in run.good("diva", "tab2", "--help").out
    assert "life, diva" in run.good("--help").out


def test_every_table_of_the_papers_has_a_command() -> None:
    from likewise.cli.papers import make_command, tables

    for paper in PAPERS:
        names = [table.name for table in tables(paper)]
        assert len(set(names)) == len(names)
        for table in tables(paper):
            assert make_command(paper, table).name == table.name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("raft",), "paper: expected one of life, diva, mlml, polarity"),
        (("diva", "tab3"), "did you mean 'tab2'?"),
        (("diva", "tab2", "--seeds", "0"), "seeds: expected integer ≥ 1"),
        (("diva", "tab2", "--out", "t.txt"), "out: expected a name that ends in .json"),
        (("diva", "tab2", "--seed", "0"), "No such option"),
    ],
)
def test_refusals_are_one_line(run: Runner, words: tuple[str, ...], said: str) -> None:
    run(*words).refused(said)
