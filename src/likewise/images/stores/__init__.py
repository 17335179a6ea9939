"""Where a gallery keeps its rows: a folder searched with FAISS, or a Milvus server. Both take the same calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float32]
Parts: TypeAlias = NDArray[np.int8]
Found: TypeAlias = list[tuple[str, float]]
"""Names with their distances, nearest first; equal distances in the order of names."""


@dataclass(frozen=True)
class About:
    """What a gallery is: the root of its relative names, and the model that made its rows."""

    root: str
    model: str
    digest: str
    dim: int
    kind: str = "auto"
    recall: float = 0.99
    cells: int = 0
    width: int = 0
    """Parts kept of each picture, and numbers each; 0 where none are."""


@dataclass(frozen=True)
class Record:
    """A picture as a store knows it: its name (below the root, or absolute), and its file's size and time in ns."""

    name: str
    size: int
    mtime: int


@dataclass(frozen=True)
class Filter:
    """Which names take part: those below a folder, those with a label; None is all."""

    under: str | None = None
    label: str | None = None

    def __call__(self, name: str) -> bool:
        """Whether a name takes part."""
        return (self.label is None or label_of(name) == self.label) and (
            self.under is None or self.under in folders_of(name)
        )


def label_of(name: str) -> str:
    """The label of a picture: the name of the folder that it lies in; "" right below the root."""
    return PurePosixPath(name).parent.name


def folders_of(name: str) -> list[str]:
    """The folders that a name lies in, from the nearest to the outermost; "" is the root of all."""
    parents = [str(p) for p in PurePosixPath(name).parents]
    return ["" if p == "." else p for p in parents]


class Store(Protocol):
    """What a gallery needs of the place where its rows are kept; what `put` takes is kept whole or not at all."""

    about: About

    def __len__(self) -> int:
        """The number of pictures."""

    def names(self) -> Iterator[str]:
        """Every name, in no particular order."""

    def known(self, names: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Size and time of those names that are kept."""

    def put(self, records: Sequence[Record], rows: Rows, parts: Parts | None = None) -> None:
        """Keep these; a name that is kept already gets the new row."""

    def rows(self, names: Sequence[str]) -> Mapping[str, Rows]:
        """The row of those names that are kept."""

    def parts(self, names: Sequence[str]) -> Mapping[str, Parts]:
        """The parts (cells, width) of those names of which some are kept."""

    def remove(self, names: Iterable[str]) -> int:
        """Drop these; how many there were."""

    def nearest(self, rows: Rows, k: int, which: Filter) -> list[Found]:
        """The k nearest kept pictures to each row, among those that take part."""

    def matches(self, which: Filter) -> bool:
        """Whether any picture takes part."""

    def writing(self) -> AbstractContextManager[None]:
        """Hold the store for writing."""

    def choose(self, kind: str, recall: float) -> None:
        """Be of another kind, tuned to another recall, from the next `settle` on."""

    def settle(self) -> None:
        """After writing: merge what is scattered, and build or renew the index where one is due."""

    def check(self) -> list[str]:
        """What is wrong with what is kept; empty when all is well."""

    def describe(self) -> dict[str, Any]:
        """Facts for people: kind, sizes, measured recall."""

    def close(self) -> None:
        """Let go of files and connections."""

    def drop(self) -> None:
        """Delete everything that is kept, and close."""
