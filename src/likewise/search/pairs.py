"""Two photos on their own: what a search would say of them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from likewise.search import parts
from likewise.search.evidence import verified
from likewise.search.result import Found
from likewise.search.verdict import judge


def pair(a: Any, b: Any, *, aligner: Any = None, thorough: bool = False) -> Found:
    """Do two pictures show the same? Their distance, transport, evidence and the probability, as of a hit in a search.

    Pictures are paths, arrays, Pillow images or tensors; `aligner` and `thorough` are those of `verified`.
    """
    from likewise.images import default

    rows, views = default().embed_with_parts([a, b])
    distance = float(np.linalg.norm(rows[0].astype(np.float64) - rows[1]))
    transport = float(parts.transports(views[0], views[1:])[0])
    known = np.isfinite(transport)
    name = os.fspath(b) if isinstance(b, str | os.PathLike) else "b"
    found = Found(
        name, 1, distance, transport=transport if known else None, parts=(views[0], views[1]) if known else None
    )
    return found.judged(judge(), verified(a, b, aligner=aligner, thorough=thorough))
