"""The oldest versions of the dependencies that pyproject.toml admits, one `name==version.*` a line, for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

HELD = {"torch"}
"""Not lowered: which builds there are depends on the machine."""


def lowest() -> list[str]:
    """One requirement a dependency."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pairs = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in project["dependencies"])
    return [f"{m[1]}=={m[2]}.*" for m in pairs if m and m[1] not in HELD]


if __name__ == "__main__":
    print("\n".join(lowest()))
