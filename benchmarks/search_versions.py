"""Another version's search over the photos of `likewise papers places`: how often its first hit is right.

    LIKEWISE_DATA=… python benchmarks/search_versions.py --python OTHER/bin/python --cells FOLDER

OTHER is a virtual environment with that version. It indexes the same gallery (references of all four collections,
2,000 birds) and is asked the same queries; of webcams each third. Ours is what `likewise papers places verdict --cells
FOLDER` harvested, each collection by a verdict that did not see it. What is answered is kept there: a run resumes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click
import numpy as np

from likewise.media import write_text
from likewise.papers import Record, data_folder
from likewise.papers.places.ranking import COLLECTIONS, MEASURED, Options, collected, fit_judge, harvest, sure_rows

EACH = {"webcams": 3}
CHILD = """
import json, sys, time
from pathlib import Path
import torch
from likewise.search import Collection
torch.set_num_threads(1)
asked, photos, place, answers = sys.argv[1:]
done = {json.loads(line)["query"] for line in open(answers)} if Path(answers).exists() else set()
found = Collection.build(photos, place)
with open(answers, "a") as out:
    for query in json.load(open(asked)):
        if query not in done:
            began = time.process_time()
            first = str(Path(found.search(query, 10)[0].path).relative_to(photos))
            row = {"query": query, "first": first, "cpu": time.process_time() - began}
            out.write(json.dumps(row) + "\\n")
            out.flush()
"""


@click.command()
@click.option("--python", "other", required=True, help="the other version's python")
@click.option("--name", default="version 0.1.0", show_default=True)
@click.option("--cells", required=True, type=click.Path(path_type=Path), help="folder of what was measured")
@click.option("--out", default="docs/results/places-versions.json", show_default=True, type=click.Path(path_type=Path))
def main(other: str, name: str, cells: Path, out: Path) -> None:
    """Ask both, and write the table."""
    data = data_folder("")
    every = {c: collected(data / "places", c, cells) for c in COLLECTIONS}
    asked = {c: range(0, len(one.queries), EACH.get(c, 1)) for c, one in every.items()}
    birds = sorted((data / "cub200-232").glob("*/*"))
    gallery = [p for one in every.values() for p in one.references.paths]
    for path in [Path(p) for p in gallery] + birds[:: len(birds) // 2000][:2000]:
        link = cells / "gallery" / path.relative_to(data)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(path)
    queries = [every[c].queries.paths[i] for c in COLLECTIONS for i in asked[c]]
    (cells / "asked.json").write_text(json.dumps(queries))
    files = [cells / file for file in ("asked.json", "gallery", "index-other", "answers-other.jsonl")]
    subprocess.run([other, "-c", CHILD, *map(str, files)], check=True)
    answers = {row["query"]: row for row in map(json.loads, (cells / "answers-other.jsonl").read_text().splitlines())}
    seen, rows = harvest(Options(cells=str(cells))), []
    for c, one in every.items():
        judge = fit_judge([sure_rows(seen[o])[:2] for o in COLLECTIONS if o != c])
        row: dict[str, Any] = {"collection": c, "queries": len(asked[c])}
        told = [answers[one.queries.paths[i]] for i in asked[c]]
        own = {Path(path).relative_to(data).as_posix(): j for j, path in enumerate(one.references.paths)}
        right = [t["first"] in own and one.right()[i, own[t["first"]]] for i, t in zip(asked[c], told, strict=True)]
        best = [
            max(seen[c][i][0], key=lambda r, j=judge: j.evaluate("verified", r[MEASURED["verified"]])) for i in asked[c]
        ]
        row |= {f"R@1, {name}": float(np.mean(right)), "R@1, now": float(np.mean([bool(r[-3]) for r in best]))}
        row |= {f"CPU-s a query, {name}": float(np.mean([t["cpu"] for t in told]))}
        rows.append(row | {"CPU-s a query, now": float(np.mean([seen[c][i][1] for i in asked[c]]))})
    note = "R@1 after verification; gallery and queries as above, of webcams each third query"
    command = "python benchmarks/search_versions.py --python other/bin/python --cells cells"
    write_text(out, json.dumps(Record(list(rows[0]), rows, note).to_dict(out.stem, command), indent=1) + "\n")


if __name__ == "__main__":
    main()
