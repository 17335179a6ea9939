"""How well: figures on real data. Those of the papers are `likewise papers <paper> <table>`.

python benchmarks/quality.py search          known places among thousands of photos: see quality_search.py
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import click

from quality_search import search


@click.group()
def main() -> None:
    """Accuracy on real data."""


for command in (search,):
    main.add_command(command)


if __name__ == "__main__":
    main()
