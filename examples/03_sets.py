"""Sets: how alike are two bags of features, which part goes to which, and can the distance learn?

About ten seconds, no download. It writes 03_sets.png and 03_sets.safetensors.
"""

import numpy as np
from skimage import data
from sklearn.datasets import load_digits, load_sample_images

import likewise as lw

draw = np.random.default_rng(0)

# 1. Two albums of photographs. A set may have any size; its points are rows of any features.
cat, cup = data.chelsea(), data.coffee()  # (300, 451, 3), (400, 600, 3) uint8
flower = load_sample_images().images[1]  # (427, 640, 3) uint8


def crops(photo, n):
    """n square views of a photograph."""
    corners = [[draw.integers(side - 200) for side in photo.shape[:2]] for _ in range(n)]
    return [photo[top : top + 200, left : left + 200] for top, left in corners]


monday = crops(cat, 3) + crops(cup, 2)
friday = crops(cat, 2) + crops(cup, 2) + crops(flower, 2)
model = lw.images.default()  # the embedder that needs no training
P, Q = model.embed(monday), model.embed(friday)  # (5, 1280), (6, 1280), rows of length 1

result = lw.sets.compare(P, Q)
print(f"plan {result.plan.shape}, mass {result.plan.sum():.2f}")  # → plan (5, 6), mass 1.00
print(f"cup to cup: {result.plan[3:, 2:4].sum():.2f}")  # → cup to cup: 0.30
result.plot("03_sets.png", thumbnails=(monday, friday), labels=("monday", "friday"))

# 2. Many sets, all against all: ten sets of five images of a digit each.
digits = load_digits()  # 1797 images of 8 × 8
by_digit = [digits.data[digits.target == d] / 16 for d in range(10)]


def some(digit, n):
    """n sets (5, 64) of five writings of a digit, each set under a brightness of its own."""
    own = by_digit[digit]
    return [draw.choice(own, 5, replace=False) + draw.normal(0, 1) for _ in range(n)]


X, y = [s for d in range(10) for s in some(d, 6)], np.repeat(np.arange(10), 6)
D = lw.sets.distances(X)
print(f"{D.shape}, symmetric: {np.allclose(D, D.T)}")  # → (60, 60), symmetric: True

# 3. Learn a metric under which sets of one digit are near, whatever their brightness.
test, truth = [s for d in range(10) for s in some(d, 10)], np.repeat(np.arange(10), 10)
nearest = y[lw.sets.distances(test, X).argmin(axis=1)]
learned = lw.sets.WassersteinLMNN(multilevel=False).fit(X, y)
before, after = (nearest == truth).mean(), learned.score(test, truth)
print(f"unlearned {before:.2f}, learned {after:.2f}")  # → unlearned 0.54, learned 0.99

# 4. Keep it: one file, no pickle.
lw.save(learned, "03_sets.safetensors")
again = lw.load("03_sets.safetensors")
print(f"same after loading: {again.score(test, truth) == after}")  # → same after loading: True
