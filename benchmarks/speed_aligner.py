"""The shipped aligner: CPU time a pair, and the memory that large photos take.

    python benchmarks/speed.py aligner

A photo of scikit-image, resized to each size, and the same through a homography in another light; each size in a
process of its own, one thread.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from record import record

CASES = ((480, 640), (3000, 4000))

_WORK = """
import json, sys, time
import numpy as np, torch
from skimage import data
from likewise.pixels.geometry import grid, homography_flow, resize, sample, transform
from likewise.pixels.aligner import default
h, w = map(int, sys.argv[1:])
torch.set_num_threads(1)
photo = resize(torch.from_numpy(data.astronaut()).permute(2, 0, 1).float() / 255, (h, w))
H = torch.tensor([[0.95, -0.08, 0.04 * w], [0.06, 1.01, -0.03 * h], [4e-2 / w, 2e-2 / h, 1.0]])
b = sample(photo[None], transform(torch.linalg.inv(H), grid(h, w))[None], padding="border")[0] ** 1.4
truth = homography_flow(H, h, w)
model = default()
began = time.process_time()
flow = model.flow(photo, b)
seconds = time.process_time() - began
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e6
error = torch.linalg.vector_norm(flow - truth, dim=-1).median()
print(json.dumps({"CPU s": seconds, "peak GB": peak, "median error, px": float(error)}))
"""


@click.command()
def aligner() -> None:
    """Time and memory of the shipped aligner."""
    rows = []
    for h, w in CASES:
        command = [sys.executable, "-c", _WORK, str(h), str(w)]
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent).stdout
        rows.append({"size": f"{h} × {w}", **json.loads(found.splitlines()[-1])})
        click.echo(json.dumps(rows[-1], ensure_ascii=False))
    note = "a photo against itself through a homography in another light; both directions; one thread"
    record("speed-aligner", list(rows[0]), rows, "python benchmarks/speed.py aligner", note)
