"""The weights of the cues that the aligner's confidence is made of, by logistic regression, into the shipped file.

    LIKEWISE_DATA=… python tools/calibrate_aligner.py

Fitted on rendered places and on still webcams under homographies; `likewise papers life confidence` says how well such
weights hold on pairs that were left out. Twelve numbers are learned from the photos, nothing else of them is kept.
"""

from __future__ import annotations

import torch

import likewise as lw
from likewise.papers.life.confidence import fit, observe
from likewise.pixels.aligner import WEIGHTS, Aligner

torch.set_num_threads(1)
model: Aligner = lw.load(WEIGHTS)
model.calibration = torch.as_tensor(fit(observe(model)), dtype=torch.float32)
lw.save(model, WEIGHTS)
print(model.calibration)
