"""`likewise distributions compare`: what one collection covers of another, and which pictures it leaves out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.terminal import check_writable, remark, result, write_json
from likewise.errors import FileError

if TYPE_CHECKING:
    from likewise.distributions.compare import DistributionComparison

NAMED = 5
"""How many unreadable pictures are named on the terminal; the JSON names all."""


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--describe", help="module:attribute of what describes pictures; by default EfficientNet-Lite0")
@click.option("--k", default=3, show_default=True, type=click.IntRange(1), help="neighbour that sets a ball's radius")
@click.option("--n", type=click.IntRange(2), help="pictures drawn of a generator; by default as many as the other has")
@click.option("--family", help="the kind of network in a file of weights, where its keys do not tell")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of those pictures")
@click.option("--most", default=16, show_default=True, type=click.IntRange(0), help="uncovered pictures that are drawn")
@click.option("--out", default="compare", show_default=True, type=click.Path(), help="folder for picture and JSON")
@click.option("--json", "as_json", is_flag=True, help="print compare.json")
def compare(
    a: str,
    b: str,
    describe: str | None,
    k: int,
    n: int | None,
    family: str | None,
    seed: int,
    most: int,
    out: str,
    as_json: bool,
) -> None:
    """Compare what A (real) and B (fake) cover: Fréchet distance, KID, precision, recall, density, coverage.

    A and B are folders of pictures, .npy or .npz files of features (n, d), or generators (module:attribute, or a file
    of weights). Pictures that cannot be read are named, counted and left out. Writes compare.png (the pictures of A
    that nothing in B covers, each with its nearest) and compare.json.
    """
    from likewise.distributions.compare import compare as measure

    folder = Path(out)
    check_writable(folder)
    sides = [_source(text, family) for text in (a, b)]
    net = _describer(describe, photos=all(isinstance(side, Path) and side.is_dir() for side in sides))
    found = measure(*sides, describe=net, k=k, n=n, seed=seed, on_error="skip", progress=True)
    _tell(found)
    record = {**found.to_dict(), "a": a, "b": b, "describe": describe, "seed": seed}
    found.plot(folder / "compare.png", labels=_labels(a, b), most=most)
    write_json(folder / "compare.json", record)
    result(repr(found), record, as_json)
    remark(f"see {folder / 'compare.png'}")


def _source(text: str, family: str | None) -> Any:
    """A folder or a file of features as its path; anything else names a generator."""
    path = Path(text)
    if path.is_dir() or path.suffix.lower() in (".npy", ".npz"):
        return path
    if not path.exists() and ":" not in text:
        raise FileError(f"{text}: no such folder or file, and not the module:attribute of a generator")
    from likewise.distributions.data import load_generator

    return load_generator(text, family=family)


def _describer(text: str | None, *, photos: bool) -> Any:
    """What --describe names; for two folders by default the embedder for photos, which uses all cores."""
    if text is None and photos:
        from likewise.images import default

        return default()
    if text is None:
        return None
    from likewise.distributions.data import load_object

    return load_object(text)


def _tell(found: DistributionComparison) -> None:
    """Say on stderr what was left out."""
    skipped = [*found.real.skipped, *found.fake.skipped]
    if not skipped:
        return
    print(f"likewise: {len(skipped)} unreadable picture{'s' if len(skipped) > 1 else ''} left out:", file=sys.stderr)
    for name, reason in skipped[:NAMED]:
        print(f"  {reason if reason.startswith(name) else f'{name}: {reason}'}", file=sys.stderr)
    if len(skipped) > NAMED:
        print(f"  and {len(skipped) - NAMED} more", file=sys.stderr)


def _labels(a: str, b: str) -> tuple[str, str]:
    """What to call two sources: their last names, and as many folders before as tell them apart."""
    left, right = Path(a).absolute().parts, Path(b).absolute().parts
    count = next((n for n in range(1, 4) if left[-n:] != right[-n:]), 1)
    one, two = ("/".join(parts[-count:]) for parts in (left, right))
    return _short(one), _short(two)


def _short(name: str) -> str:
    return name if len(name) <= 28 else "…" + name[-27:]
