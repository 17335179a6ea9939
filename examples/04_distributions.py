"""Distributions: quality or diversity of a generator; what one collection covers of another.

Run it: python examples/04_distributions.py (half a minute; no download).
It writes 04_polarity.png and 04_coverage.png.
"""

import numpy as np
import torch

import likewise as lw
from likewise import plot
from likewise.distributions import Generator, Normal, Uniform, harvest, pretrained
from likewise.nn.features import to_uint8


# 1. A map whose answer is known: it squeezes the left half of [0, 1] and stretches the right.
# At ρ = 1 its samples are spread evenly.
def squeeze(z):
    return torch.where(z < 0.5, 0.2 * z, 1.8 * z - 0.8)


known = Generator(squeeze, Uniform(1, 0.0, 1.0))
bank = harvest(known, 4000, progress=False)  # singular values of its Jacobian at 4000 latents, once
for rho in (0.0, 1.0):
    x = known(bank.sample(4000, rho)).numpy()  # (4000, 1)
    print(f"rho {rho:g}: {(x < 0.1).mean():.2f} of the samples lie in the first tenth")
# → rho 0: 0.51 of the samples lie in the first tenth
# → rho 1: 0.11 of the samples lie in the first tenth

# 2. Any network z → x. This one draws clothes, measured in the features of a small classifier.
generator = pretrained("fashion").in_space(lw.distributions.fashion_features())
bank = harvest(generator, 400, k=3, progress=False)
print(f"at rho = -1, {bank.ess(-1):.2f} of the bank counts; 0.30 at {bank.rho_for_ess(0.3):.2f}")
# → at rho = -1, 0.11 of the bank counts; 0.30 at -0.71

rows, rhos = [], (-1.0, 0.0, 1.0)  # modes, the model itself, anti-modes
for rho in rhos:
    z = bank.sample(10, rho, scheme="without")  # (10, 32)
    rows.append(to_uint8(generator(z)))  # ten images (28, 28, 3)
plot.save(plot.grid(rows, [f"ρ = {rho:g}" for rho in rhos]), "04_polarity.png")

# 3. A network of one's own: any callable with the density of its latents.
net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
mine = harvest(Generator(net, Normal(2)), 200, progress=False)
print(mine)  # → Bank(200 latents of Sequential, k = 2, space pixel, dead 0.00%)

# 4. What does one collection cover of another? The second has no blue in it.
draw = np.random.default_rng(0)
colours = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}
first, second = [], []
for name, colour in colours.items():
    tinted = np.clip(0.6 * np.array(colour) + 0.4 * draw.random((40, 8, 8, 3)), 0, 1)
    first += list(tinted[:20])
    second += list(tinted[20:]) if name != "blue" else []
mean = lambda x: x.mean((2, 3))  # noqa: E731  (n, 3, 8, 8) → features (n, 3): any callable
result = lw.distributions.compare(np.stack(first), np.stack(second), features=mean)
blue = sum(i >= 40 for i in result.uncovered)
print(f"recall {result.recall:.2f}, uncovered: {blue} of 20 blue ones")
# → recall 0.62, uncovered: 20 of 20 blue ones
result.plot("04_coverage.png")
