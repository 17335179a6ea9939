"""One photo, and the same place at night from a turned camera: where did every pixel go?

python examples/01_pixels.py        # about 15 s on one core
"""

import cv2
import numpy as np
import torch
from skimage import data

import likewise as lw

# A cup of coffee, and the same bent by a homography H that we know, at night.
day = data.coffee()[:, 60:540]  # (400, 480, 3) uint8
h, w = day.shape[:2]
H = np.array([[0.93, -0.25, 60.0], [0.24, 0.95, -50.0], [1e-4, 5e-5, 1.0]])
night = cv2.warpPerspective(day, H, (w, h))
night = (255 * (night / 255) ** 1.8 * [0.45, 0.5, 0.7]).astype(np.uint8)

# The flow, and how far it is from the truth where that lies inside the second image.
result = lw.pixels.compare(day, night)  # .flow .back .confidence .distance .warp() .plot()
flow = np.asarray(result.flow)  # (400, 480, 2): pixel p of `day` goes to p + flow[p]
y, x = np.mgrid[:h, :w]
ends = np.stack([x, y, np.ones_like(x)], 2) @ H.T
ends = ends[..., :2] / ends[..., 2:]
inside = ((ends >= 0) & (ends <= [w - 1, h - 1])).all(2)
error = np.linalg.norm(np.stack([x, y], 2) + flow - ends, axis=2)[inside]
print(f"round-trip error below 1 px: {result.distance < 1}")
# → round-trip error below 1 px: True
print(f"within 3 px: {(error <= 3).mean() > 0.95}")  # → within 3 px: True

# Figures and files for others.
result.plot("alignment.png")  # both, b warped to a, a checkerboard, the flow, its confidence
lw.pixels.write_flow("flow.flo", result.flow)  # or .png, KITTI's
print(np.array_equal(np.asarray(lw.pixels.read_flow("flow.flo")), flow))  # → True

# Matches of features near where the flow points, and the homography that they are inliers of.
matches = lw.pixels.match(day, night, features="sift", guide=(result.flow, result.back))
estimate = matches.homography()
corners = np.array([[[0, 0], [w, 0], [w, h], [0, h]]], dtype=float)
true, ours = (cv2.perspectiveTransform(corners, m) for m in (H, np.asarray(estimate)))
apart = np.abs(true - ours)
print(f"most are inliers: {estimate.n > 0.5 * len(matches)}")  # → most are inliers: True
print(f"corners to 3 px: {apart.max() < 3}")  # → corners to 3 px: True

# A rendered place under two lights, with its exact flow and cameras: for training and evaluation.
pair = lw.pixels.Renderer(size=(96, 128)).pair(seed=1)
grid = torch.meshgrid(torch.arange(128), torch.arange(96), indexing="xy")
points = torch.stack(grid, dim=-1).double()
print(f"{float(lw.pixels.sed(points, points + pair.flow, pair.F).max()):.2f} px")  # → 0.00 px
lit = lw.pixels.compare(pair.a, pair.b)
error = (torch.as_tensor(np.asarray(lit.flow)) - pair.flow).norm(dim=-1)[pair.visible]
still = pair.flow.norm(dim=-1)[pair.visible]  # the error of no flow at all
print(f"less than half of no flow's error: {error.mean() < 0.5 * still.mean()}")
# → less than half of no flow's error: True
