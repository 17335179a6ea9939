"""A measure in a process of its own: CPU and wall seconds, peak memory, and the figures that it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_CLOCK = """
import json, resource, sys, time
cpu, wall = time.process_time(), time.perf_counter()
found = run()
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak * (1 if sys.platform == "darwin" else 1024), "found": found}))
"""


class Failed(Exception):
    """The process ended with an error, of which this is the last line, or was killed."""


def measured(script: str, *words: object, threads: int) -> dict[str, Any]:
    """Columns of a table: time, memory and figures of `run()`, which a script defines from its words."""
    env = {**os.environ, **{f"{lib}_NUM_THREADS": str(threads) for lib in ("OMP", "OPENBLAS", "MKL")}}
    command = [sys.executable, "-c", script + _CLOCK, *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed((done.stderr.strip() or "killed").splitlines()[-1])
    found = json.loads(done.stdout)
    return {
        "CPU s": round(found["cpu"], 1),
        "wall s": round(found["wall"], 1),
        "peak GB": round(found["peak"] / 1e9, 2),
        "figures": ", ".join(f"{k} {v:.6g}" for k, v in found["found"].items()),
    }
