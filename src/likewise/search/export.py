"""Results for other programs: a table (CSV), lists of images and pairs (COLMAP, hloc), a dataset (FiftyOne)."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from likewise import media
from likewise.errors import InputError
from likewise.search.result import Result

COLUMNS = (
    "query", "rank", "path", "verdict", "probability", "distance", "inliers", "matches", "model", "taken", "latitude",
    "longitude",
)  # fmt: skip
"""Of the table of hits: a row a hit."""
FORMATS = ("csv", "colmap", "fiftyone")
APART = frozenset({"path", "taken", "latitude", "longitude", "verdict", "probability", "group"})
"""What FiftyOne has a place of its own for; the rest are attributes of a label."""
FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""How a cell begins that a spreadsheet would run."""


def export(
    results: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    root: str | os.PathLike[str] | None = None,
    least: float | None = None,
) -> Path:
    """Write the hits of searches, or groups of duplicates, for another program.

    "csv" is a table, a row a hit (`COLUMNS`) or a photo of a group; cells that a spreadsheet would run as a formula
    begin with an apostrophe. "colmap" is a folder: pairs.txt has a pair of images a line, images.txt every image in
    them, as COLMAP and hloc read them. "fiftyone" is a folder that `fiftyone.Dataset.from_dir` reads as a
    `FiftyOneDataset`: a sample a photo, the searches that gave it under `hits`. What EXIF tells of time and place is in
    the table and the dataset.

    Parameters
    ----------
    results : Result, sequence of Result, or groups
        What `Collection.search` gave, or what `Collection.duplicates` did: lists of paths, or objects whose `to_dict`
        has a list of rows with a "path" each.
    path : path
        The file, or the folder, to write.
    format : "csv", "colmap" or "fiftyone", optional
        By default what `path` ends in.
    root : path, optional
        The folder that the names of "colmap" are relative to; by default the deepest that holds all images.
    least : float, optional
        For "colmap", the probability from which on a hit is a pair; by default that of the verdict "same".

    Returns
    -------
    Path
        What was written.

    Raises
    ------
    InputError
        Where the format is unknown, or a name cannot stand in a list.

    Examples
    --------
    >>> import likewise as lw, tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     print(lw.search.export([["a.jpg", "b.jpg"]], f"{home}/copies.csv").read_text().split())
    ['group,path,taken,latitude,longitude', '1,a.jpg,,,', '1,b.jpg,,,']
    """
    given = Path(path).suffix.lstrip(".") if format is None else format
    if given not in FORMATS:
        raise InputError(f"format: expected one of {', '.join(FORMATS)}, or a path that ends so, got {given!r}")
    if least is not None and not 0 <= least <= 1:
        raise InputError(f"least: expected a probability from 0 to 1, got {least!r}")
    some = [results] if isinstance(results, Result) else list(results)
    hits = not some or isinstance(some[0], Result)
    table = [*(_hits(some) if hits else _groups(some))]
    if given == "colmap":
        _write_lists(Path(path), _pairs(table, hits, least), root)
    else:
        (_write_csv if given == "csv" else _write_fiftyone)(Path(path), table, hits)
    return Path(path)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _hits(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """A row a hit."""
    for result in results:
        for hit in result:
            told = {} if hit.evidence is None else hit.evidence.to_dict()
            row = {"query": result.query.names[hit.shot], **hit.to_dict(), **told, **media.taken_at(hit.path)}
            yield {name: row.get(name) for name in COLUMNS}


def _groups(groups: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """A row a photo, the number of its group first."""
    for number, group in enumerate(groups, 1):
        told = group.to_dict() if hasattr(group, "to_dict") else list(group)
        if isinstance(told, Mapping):  # what is said of the group, and a list of what is said of each photo
            told = next((v for v in told.values() if isinstance(v, list)), [])
        for row in told:
            plain = row if isinstance(row, Mapping) else {"path": os.fspath(row)}
            yield {"group": number, **plain, **media.taken_at(plain["path"])}


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_csv(path: Path, table: Sequence[Mapping[str, Any]], hits: bool) -> None:
    names = COLUMNS if hits else tuple(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([names, *([_cell(row.get(name)) for name in names] for row in table)])
    media.write_text(path, text.getvalue())


def _cell(value: Any) -> Any:
    """What stands in a cell: text that would be a formula is made text again, numbers are short."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value if value is None or isinstance(value, str | int) else json.dumps(value)


# ── lists of images and pairs ─────────────────────────────────────────────────────────────────────────────────────


def _pairs(table: Sequence[Mapping[str, Any]], hits: bool, least: float | None) -> list[tuple[str, str]]:
    """Which images belong together, each two once."""
    if hits:
        same = [r for r in table if (r["verdict"] == "same" if least is None else r["probability"] >= least)]
        pairs = [(r["query"], r["path"]) for r in same]
    else:
        grouped = itertools.groupby(table, key=lambda row: row["group"])
        pairs = [two for _, rows in grouped for two in itertools.combinations([r["path"] for r in rows], 2)]
    unique = {frozenset(map(os.path.abspath, two)): two for two in reversed(pairs)}
    return [two for key, two in reversed(unique.items()) if len(key) == 2]


def _write_lists(folder: Path, pairs: Sequence[tuple[str, str]], root: Any) -> None:
    images = list(dict.fromkeys(itertools.chain(*pairs)))
    for name in images:
        if not media.is_file(name):
            raise InputError(f"results: {name} is no file; COLMAP's pairs are of files")
    folders = [os.path.dirname(os.path.abspath(name)) for name in images]
    base = os.path.abspath(root) if root is not None else os.path.commonpath(folders) if folders else ""
    names = {name: Path(os.path.relpath(os.path.abspath(name), base or None)).as_posix() for name in images}
    for name in names.values():
        if name.startswith("../") or name != "".join(name.split()):
            why = "lies outside of root" if name.startswith("../") else "has a space, which ends a name there"
            raise InputError(f"results: {name!r} cannot stand in COLMAP's lists: it {why}")
    for file, rows in (("images.txt", [(name,) for name in images]), ("pairs.txt", pairs)):
        lines = [" ".join(names[name] for name in row) + "\n" for row in rows]
        media.write_bytes(folder / file, os.fsencode("".join(lines)))  # names are bytes there, whatever they mean


# ── FiftyOne ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_fiftyone(folder: Path, table: Sequence[Mapping[str, Any]], hits: bool) -> None:
    """metadata.json and samples.json as FiftyOne wrote them before 0.8: plain, and read by its newer versions, too."""
    samples: dict[str, dict[str, Any]] = {}
    for row in table:
        sample = samples.setdefault(os.path.abspath(row["path"]), {"tags": ["hit" if hits else "duplicate"]})
        sample["taken"] = row["taken"]
        if row["latitude"] is not None:
            sample["location"] = {"_cls": "GeoLocation", "point": [row["longitude"], row["latitude"]]}
        label: dict[str, Any] = {"label": row["verdict"] if hits else f"group {row['group']}"}
        label |= {"confidence": row["probability"]} if hits else {}
        label |= {name: value for name, value in row.items() if name not in APART}
        labels = sample.setdefault("hits" if hits else "groups", {"_cls": "Classifications", "classifications": []})
        labels["classifications"].append({"_cls": "Classification", **label})
    for name in {row["query"] for row in table if hits and media.is_file(row["query"])}:
        samples.setdefault(os.path.abspath(name), {"tags": []})["tags"].append("query")
    listed = [{"filepath": path, **sample} for path, sample in sorted(samples.items())]
    text = json.dumps({"samples": listed}, indent=1, ensure_ascii=False)
    if text != text.encode("utf-8", "replace").decode():
        raise InputError("results: the name of a photo is not UTF-8, as FiftyOne needs it; rename it")
    media.write_text(folder / "samples.json", text)
    media.write_text(folder / "metadata.json", json.dumps({"media_type": "image", "info": {"source": "likewise"}}))
