"""The weights of the cues that the aligner's confidence is made of, by logistic regression, into the shipped file.

    LIKEWISE_DATA=… python tools/calibrate_aligner.py

Fitted on half of the rendered places and of the still webcams under homographies; `likewise papers life confidence`
reports the other half. Six numbers are learned from the photos, nothing else of them is kept.
"""

from __future__ import annotations

import click
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import likewise as lw
from likewise.papers.life.tables import calibration_sets
from likewise.pixels.aligner import WEIGHTS, Aligner, align, resize_flows
from likewise.pixels.geometry import size_of

EACH = 3000
"""Pixels of a pair."""


@click.command()
@click.option("--webcams", default=60, show_default=True, help="still webcams, of which half is used")
def main(webcams: int) -> None:
    """Fit, and write."""
    torch.set_num_threads(1)
    model: Aligner = lw.load(WEIGHTS)
    rng = np.random.default_rng(0)
    rows, right, weights = [], [], []
    for samples in calibration_sets("", webcams, part=0).values():
        for s in samples:
            aligned, cues = align(model.network, s.a, s.b, model.options)
            if cues is None:  # no alignment
                continue
            flow = resize_flows(aligned, size_of(s.a), size_of(s.b)).ab.numpy()
            full = torch.nn.functional.interpolate(cues.movedim(-1, 0)[None], size_of(s.a), mode="bilinear")[0]
            valid = np.flatnonzero(np.asarray(s.flow.valid))
            some = rng.choice(valid, min(EACH, len(valid)), replace=False)
            d = np.linalg.norm(flow - np.asarray(s.flow), axis=-1).reshape(-1)
            rows.append(full.flatten(1).T.numpy()[some])
            right.append(d[some] <= 3)
            weights.append(np.full(len(some), 1.0 / len(samples)))  # both kinds of data count alike
    fit = LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000)
    fit.fit(np.concatenate(rows), np.concatenate(right), np.concatenate(weights))
    calibration = [round(float(x), 4) for x in fit.coef_[0]]
    click.echo(f"calibration {calibration}, right {np.concatenate(right).mean():.3f}")
    made = Aligner(model.network, model.options, name=model.name, recipe=model.recipe, figures=model.figures,
                   calibration=calibration)  # fmt: skip
    lw.save(made, WEIGHTS)


if __name__ == "__main__":
    main()
