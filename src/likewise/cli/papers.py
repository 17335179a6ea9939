"""`likewise papers <paper> <table>`: the tables and figures of the four papers, made on your machine."""

from __future__ import annotations

import difflib
import importlib
import shlex
from collections.abc import Sequence
from typing import Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import flag, json_flag
from likewise.errors import InputError
from likewise.papers import PAPERS, Record, Table
from likewise.train.options import add_options, build


@click.command(
    cls=Command,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    },
)
@click.argument("paper", required=False)
@click.argument("table", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def papers(ctx: click.Context, paper: str | None, table: str | None, options: tuple[str, ...]) -> None:
    """Make a table or figure of a paper: life, diva, mlml or polarity; or of places. Without TABLE, list them.

    Each table has options of its own; data sets that cannot be fetched are read from the folder LIKEWISE_DATA.

    \b
    likewise papers                        every table
    likewise papers mlml                   those of one paper
    likewise papers mlml tab2 --help       the options of one
    likewise papers mlml tab2 --out tab2.json
    """
    if paper is not None and paper not in PAPERS:
        raise InputError(f"paper: expected one of {', '.join(PAPERS)}, got {paper!r}")
    if paper is None or table is None:
        every = {f"{name} {t.name}": t.title for name in ([paper] if paper else PAPERS) for t in tables(name)}
        width = max(map(len, every), default=0)
        click.echo("\n".join(f"{name:<{width}}  {title}" for name, title in every.items()) or "no tables yet")
        return
    chosen = {t.name: t for t in tables(paper)}
    if table not in chosen:
        near = difflib.get_close_matches(table, chosen, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"table: {paper} has {', '.join(chosen) or 'none'}, got {table!r}{hint}")
    command = make_command(paper, chosen[table], options)
    with command.make_context(table, list(options), parent=ctx) as inner:
        command.invoke(inner)


def tables(paper: str) -> tuple[Table, ...]:
    """The tables of a paper."""
    entries: tuple[Table, ...] = getattr(importlib.import_module(f"likewise.papers.{paper}"), "TABLES", ())
    return entries


def make_command(paper: str, table: Table, words: Sequence[str] = ()) -> click.Command:
    """The command of a table: its own options, and where the record goes, which holds the words that were typed."""

    def run(out: str | None, as_json: bool, **given: Any) -> None:
        file = None if out is None else terminal.target(out, "out", (".json",))
        record = table.run(build(table.options, given))
        typed = shlex.join(["likewise", "papers", paper, table.name, *words])
        written = record.to_dict(f"{paper}-{table.name}", typed)
        if file is not None:
            terminal.write_json(file, written)
            terminal.remark(f"see {file}")
        terminal.result([] if as_json else draw(table.title, record).splitlines(), written, as_json)

    described = json_flag(flag("--out", type=click.Path(), help="write the record as JSON")(run))
    described.__doc__ = table.title
    command: click.Command = click.command(table.name, cls=Command)(add_options(table.options)(described))
    return command


def draw(title: str, record: Record) -> str:
    """The record as a table for a terminal."""
    rows = [[terminal.cell(row.get(name)) for name in record.columns] for row in record.rows]
    return "\n".join([title, *terminal.columns([record.columns, *rows])])
