"""A run of the command line in this process, as tests look at it."""

from __future__ import annotations

import json
from typing import Any


class Ran:
    """An exit code and what was said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)
