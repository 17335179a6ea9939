"""Numba kernels of the renderer: rays against unit shapes, mip-mapped photo textures, lights with cast shadows.

A solid is a unit shape seen through an affine map p = M (x − c): box |p|∞ ≤ 1, ball ‖p‖ ≤ 1, cylinder of radius 1 and
half height 1, sheet |p_x|, |p_y| ≤ 1 at p_z = h(p_x, p_y). The ray's parameter t is the same before and after the map;
directions have z = 1 in the camera, so that t is the depth. A height h is a quadratic B-spline of a table.

All of a solid is one row of an array (columns KIND … TEXTURE, see scenes), for numba passes an array as seven words.
One file, for numba's cache of a function knows of changes in that function's own file only.
"""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays.

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import njit

from likewise.media import cache_folder
from likewise.pixels.rendering.scenes import (
    BALL,
    BOUND,
    BOX,
    CASTS,
    CYLINDER,
    HALF,
    KIND,
    LIMITS,
    MAP,
    PAINT,
    RELIEF,
    SHEET,
    TEXTURE,
)
from likewise.pixels.rendering.textures import reflectance

CURVE = reflectance()
STEPS = 200
"""The most steps along a ray that may meet a height field."""
NEAR = 1e-3
"""Hits nearer than this, in depth, are not seen."""
SLACK = 1e-6
"""A point counts as seen if nothing is nearer than this share of the way to it."""
LIFT = 2e-3
"""How far, in metres, a shadow ray starts above its surface."""
CLOSE = 1e-12
"""A ray this near to a height field, in metres, has met it."""
HIGHLIGHT = 24.0
"""The exponent of the highlights."""
SOFT = 0.15
"""How wide the soft edge of a lamp's cone is, in cosine."""
SHOULDER = 0.7
"""Light above this is compressed towards 1."""
AROUND = ((0.36, -0.3), (-0.36, 0.3))
"""Where the further rays of a pixel on an edge go."""


def _jit(function: Any, **options: bool) -> Any:
    """njit without the GIL, its machine code kept in the user's cache folder; no reassociation: same bytes."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_folder() / "numba")
    try:
        return njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def _part(function: Any) -> Any:
    """A part that is written into its callers: a call would cost as much as what it does."""
    return _jit(function, forceinline=True)


# --------------------------------------------------------------------------------------------------------- one shape


@_part
def height(tables, k, x, y):
    """h and its slopes ∂h/∂x, ∂h/∂y at x, y ∈ [−1, 1]: a quadratic B-spline over the cells of table k."""
    rows, columns = tables.shape[1:]
    gx, gy = 0.5 * (columns - 2), 0.5 * (rows - 2)
    u, v = (x + 1.0) * gx, (y + 1.0) * gy
    i, j = min(max(int(u), 0), columns - 3), min(max(int(v), 0), rows - 3)
    u, v = u - i, v - j
    a0, a1, a2 = 0.5 * (1.0 - u) * (1.0 - u), 0.5 + u * (1.0 - u), 0.5 * u * u
    b0, b1, b2 = 0.5 * (1.0 - v) * (1.0 - v), 0.5 + v * (1.0 - v), 0.5 * v * v
    da0, da1, da2 = u - 1.0, 1.0 - 2.0 * u, u
    db0, db1, db2 = v - 1.0, 1.0 - 2.0 * v, v
    p0 = a0 * tables[k, j, i] + a1 * tables[k, j, i + 1] + a2 * tables[k, j, i + 2]
    p1 = a0 * tables[k, j + 1, i] + a1 * tables[k, j + 1, i + 1] + a2 * tables[k, j + 1, i + 2]
    p2 = a0 * tables[k, j + 2, i] + a1 * tables[k, j + 2, i + 1] + a2 * tables[k, j + 2, i + 2]
    q0 = da0 * tables[k, j, i] + da1 * tables[k, j, i + 1] + da2 * tables[k, j, i + 2]
    q1 = da0 * tables[k, j + 1, i] + da1 * tables[k, j + 1, i + 1] + da2 * tables[k, j + 1, i + 2]
    q2 = da0 * tables[k, j + 2, i] + da1 * tables[k, j + 2, i + 1] + da2 * tables[k, j + 2, i + 2]
    return b0 * p0 + b1 * p1 + b2 * p2, (b0 * q0 + b1 * q1 + b2 * q2) * gx, (db0 * p0 + db1 * p1 + db2 * p2) * gy


@_part
def _slab(o, d, low, high):
    """Where a ray is between two parallel planes: (t0, t1), empty if t0 > t1."""
    if abs(d) < 1e-14:
        return (-np.inf, np.inf) if low <= o <= high else (np.inf, -np.inf)
    r = 1.0 / d
    a, b = (low - o) * r, (high - o) * r
    return (a, b) if r > 0.0 else (b, a)


@_jit
def _meet_height(ox, oy, oz, dx, dy, dz, first, last, tables, solids, n):
    """The first crossing of a height field, by steps that never pass it and still converge like Newton's.

    With |g′| ≤ A and |g″| ≤ C along the ray, nothing is crossed within g/A, nor before g + g′τ − Cτ²/2 = 0, that is
    τ = 2g / (√(g′² + 2Cg) − g′).
    """
    x0, x1 = _slab(ox, dx, -1.0, 1.0)
    y0, y1 = _slab(oy, dy, -1.0, 1.0)
    z0, z1 = _slab(oz, dz, solids[n, LIMITS], solids[n, LIMITS + 1])
    t, end = max(x0, y0, z0, first), min(x1, y1, z1, last)
    if not t < end:
        return np.inf
    k, ax, ay = int(solids[n, RELIEF]), abs(dx), abs(dy)
    A = abs(dz) + solids[n, LIMITS + 2] * ax + solids[n, LIMITS + 3] * ay + 1e-12
    C = (solids[n, LIMITS + 4] * ax + 2.0 * solids[n, LIMITS + 5] * ay) * ax + solids[n, LIMITS + 6] * ay * ay
    side = 0.0
    for _ in range(STEPS):
        h, sx, sy = height(tables, k, ox + t * dx, oy + t * dy)
        g, slope = oz + t * dz - h, dz - sx * dx - sy * dy
        if side == 0.0:
            side = 1.0 if g > 0.0 else -1.0
        g, slope = side * g, side * slope
        if g < CLOSE:
            return t
        t += max(g / A, 2.0 * g / (math.sqrt(slope * slope + 2.0 * C * g) - slope + 1e-300))
        if not t < end:
            return np.inf
    return np.inf


@_part
def _meet(ox, oy, oz, dx, dy, dz, first, last, tables, solids, n):
    """The smallest t in (first, last) at which a ray meets a unit shape, or infinity."""
    kind = solids[n, KIND]
    if kind == SHEET:
        if solids[n, RELIEF] >= 0.0:
            return _meet_height(ox, oy, oz, dx, dy, dz, first, last, tables, solids, n)
        t = -oz / dz if abs(dz) > 1e-14 else np.inf
        inside = abs(ox + t * dx) <= 1.0 and abs(oy + t * dy) <= 1.0
        return t if inside and first < t < last else np.inf
    t0, t1 = -np.inf, np.inf
    if kind != BALL:
        t0, t1 = _slab(oz, dz, -1.0, 1.0)
    if kind == BOX:
        x0, x1 = _slab(ox, dx, -1.0, 1.0)
        y0, y1 = _slab(oy, dy, -1.0, 1.0)
        t0, t1 = max(t0, x0, y0), min(t1, x1, y1)
    else:
        a, b, c = dx * dx + dy * dy, ox * dx + oy * dy, ox * ox + oy * oy - 1.0
        if kind == BALL:
            a, b, c = a + dz * dz, b + oz * dz, c + oz * oz
        under = b * b - a * c
        if under < 0.0:
            return np.inf
        root = math.sqrt(under)
        if a > 1e-14:
            t0, t1 = max(t0, (-b - root) / a), min(t1, (-b + root) / a)
        elif c > 0.0:
            return np.inf
    if t0 > t1:
        return np.inf
    t = t0 if t0 > first else t1
    return t if first < t < last else np.inf


# --------------------------------------------------------------------------------------------------------- the scene


@_part
def _local(solids, n, x, y, z):
    """M v for a direction v of the world."""
    return (
        solids[n, MAP] * x + solids[n, MAP + 1] * y + solids[n, MAP + 2] * z,
        solids[n, MAP + 3] * x + solids[n, MAP + 4] * y + solids[n, MAP + 5] * z,
        solids[n, MAP + 6] * x + solids[n, MAP + 7] * y + solids[n, MAP + 8] * z,
    )


@_jit
def nearest(ox, oy, oz, dx, dy, dz, first, last, casting, solids, tables):
    """(t, solid) of the first solid along a ray, (infinity, −1) if none; with `casting` any that casts shadows will do.

    A solid whose bounding ball the ray misses is passed over.
    """
    best, solid = last, -1
    dd = dx * dx + dy * dy + dz * dz
    for n in range(solids.shape[0]):
        if casting and solids[n, CASTS] == 0.0:
            continue
        ex, ey, ez = ox - solids[n, MAP + 9], oy - solids[n, MAP + 10], oz - solids[n, MAP + 11]
        along = ex * dx + ey * dy + ez * dz
        if (ex * ex + ey * ey + ez * ez - solids[n, BOUND]) * dd > along * along:
            continue
        px, py, pz = _local(solids, n, ex, ey, ez)
        qx, qy, qz = _local(solids, n, dx, dy, dz)
        t = _meet(px, py, pz, qx, qy, qz, first, best, tables, solids, n)
        if t < best:
            best, solid = t, n
            if casting:
                return best, solid
    return (best, solid) if solid >= 0 else (np.inf, -1)


@_part
def _face(kind, px, py, pz):
    """The face of a unit shape that a point of its surface lies on: 2 · axis + (1 if on the positive side)."""
    ax, ay, az = abs(px), abs(py), abs(pz)
    if kind == SHEET:
        return 0
    if kind == CYLINDER:
        return (5 if pz > 0 else 4) if az * az >= px * px + py * py else 0
    if ax >= ay and ax >= az:
        return 1 if px > 0 else 0
    if ay >= az:
        return 3 if py > 0 else 2
    return 5 if pz > 0 else 4


@_part
def _normal(face, px, py, pz, tables, solids, n):
    """The unit normal in the world: Mᵀ times the normal of the unit shape."""
    kind = solids[n, KIND]
    nx, ny, nz = px, py, pz
    if kind == SHEET:
        nx, ny, nz = 0.0, 0.0, 1.0
        if solids[n, RELIEF] >= 0.0:
            _, sx, sy = height(tables, int(solids[n, RELIEF]), px, py)
            nx, ny = -sx, -sy
    elif kind == BOX or (kind == CYLINDER and face >= 4):
        side = 1.0 if face % 2 else -1.0
        nx, ny, nz = side * (face < 2), side * (2 <= face < 4), side * (face >= 4)
    elif kind == CYLINDER:
        nz = 0.0
    wx = solids[n, MAP] * nx + solids[n, MAP + 3] * ny + solids[n, MAP + 6] * nz
    wy = solids[n, MAP + 1] * nx + solids[n, MAP + 4] * ny + solids[n, MAP + 7] * nz
    wz = solids[n, MAP + 2] * nx + solids[n, MAP + 5] * ny + solids[n, MAP + 8] * nz
    r = 1.0 / math.sqrt(wx * wx + wy * wy + wz * wz)
    return wx * r, wy * r, wz * r


@_part
def _chart(face, px, py, pz, solids, n):
    """Metric coordinates (u, v) on a face and the local axes they run along."""
    axis, kind = face // 2, solids[n, KIND]
    if kind == SHEET:
        return px * solids[n, HALF], py * solids[n, HALF + 1], 0, 1
    if kind == CYLINDER and axis == 0:
        return math.atan2(py, px) * solids[n, HALF], pz * solids[n, HALF + 2], 0, 2
    s = 1.0
    if kind == BALL:
        s = 1.0 / max(abs(px), abs(py), abs(pz))
    if axis == 0:
        return py * solids[n, HALF + 1] * s, pz * solids[n, HALF + 2] * s, 1, 2
    if axis == 1:
        return px * solids[n, HALF] * s, pz * solids[n, HALF + 2] * s, 0, 2
    return px * solids[n, HALF] * s, py * solids[n, HALF + 1] * s, 0, 1


# ---------------------------------------------------------------------------------------------------------- textures


@_part
def _mirrored(x, size):
    """A coordinate folded into [0, size], and the sign of its direction there."""
    x -= 2.0 * size * math.floor(x / (2.0 * size))
    return (2.0 * size - x, -1.0) if x > size else (x, 1.0)


@_part
def _texel(texels, at, w, h, x, y, out, weight):
    """out[:3] += weight × the bilinear colour at (x, y) ∈ [0, w] × [0, h]; out[3:] the same of green's slopes."""
    x, y = min(max(x - 0.5, 0.0), w - 1.0), min(max(y - 0.5, 0.0), h - 1.0)
    i, j = int(x), int(y)
    fx, fy = x - i, y - j
    i1, j1 = min(i + 1, w - 1), min(j + 1, h - 1)
    p, q, r, s = at + j * w + i, at + j * w + i1, at + j1 * w + i, at + j1 * w + i1
    for c in range(3):
        a, b, d, e = CURVE[texels[p, c]], CURVE[texels[q, c]], CURVE[texels[r, c]], CURVE[texels[s, c]]
        top, low = a + fx * (b - a), d + fx * (e - d)
        out[c] += weight * (top + fy * (low - top))
        if c == 1:
            out[3] += weight * ((1.0 - fy) * (b - a) + fy * (e - d))
            out[4] += weight * (low - top)


@_part
def sampled(texels, levels, texture, u, v, foot, out):
    """out = linear RGB, then green's slopes along u and v, of a texture at (u, v) in units of its shorter side.

    Trilinear over two levels of its pyramid, mirrored beyond its borders; `foot` is the pixel's footprint in (u, v).
    """
    w0, h0 = levels[texture, 0, 1], levels[texture, 0, 2]
    short = float(min(w0, h0))
    x, sx = _mirrored(u * short, float(w0))
    y, sy = _mirrored(v * short, float(h0))
    level = min(math.log2(max(foot * short, 1.0)), levels.shape[1] - 1.001)
    l0 = int(level)
    f = level - l0
    for c in range(5):
        out[c] = 0.0
    for k in range(2 if f > 0.0 else 1):
        at, w, h = levels[texture, l0 + k, 0], levels[texture, l0 + k, 1], levels[texture, l0 + k, 2]
        _texel(texels, at, w, h, x * w / w0, y * h / h0, out, f if k else 1.0 - f)
    out[3] *= sx
    out[4] *= sy


# ----------------------------------------------------------------------------------------------------------- shading


@_part
def _ray(camera, x, y):
    """The direction in the world of the ray through (x, y), of depth 1."""
    cx, cy = (x - camera[10]) / camera[9], (y - camera[11]) / camera[9]
    return (
        camera[0] * cx + camera[3] * cy + camera[6],
        camera[1] * cx + camera[4] * cy + camera[7],
        camera[2] * cx + camera[5] * cy + camera[8],
    )


@_jit
def _shade(x, y, camera, solids, tables, texels, levels, lights, out):
    """One ray: out[:3] = linear radiance; returns depth, solid, and a mark that changes where edges are."""
    dx, dy, dz = _ray(camera, x, y)
    ox, oy, oz = camera[12], camera[13], camera[14]
    t, n = nearest(ox, oy, oz, dx, dy, dz, NEAR, np.inf, False, solids, tables)
    if n < 0:
        out[0] = out[1] = out[2] = 0.0
        return t, n, -1
    X, Y, Z = ox + t * dx, oy + t * dy, oz + t * dz
    px, py, pz = _local(solids, n, X - solids[n, MAP + 9], Y - solids[n, MAP + 10], Z - solids[n, MAP + 11])
    face = _face(solids[n, KIND], px, py, pz)
    nx, ny, nz = _normal(face, px, py, pz, tables, solids, n)
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    vx, vy, vz = -dx / length, -dy / length, -dz / length
    facing = nx * vx + ny * vy + nz * vz
    if facing < 0.0:
        nx, ny, nz, facing = -nx, -ny, -nz, -facing
    foot = t / camera[9] / math.sqrt(max(facing, 0.05))
    bx, by, bz = _painted(face, px, py, pz, nx, ny, nz, foot, solids, n, texels, levels, out)
    mark = (n * 8 + face) * 256
    if solids[n, PAINT + 7] > 0.0:  # a backdrop shines by itself
        for c in range(3):
            out[c] *= lights[0, 6 + c]
        return t, n, mark

    red, green, blue = out[0], out[1], out[2]
    up = 0.5 + 0.5 * bz
    for c in range(3):
        out[c] *= up * lights[0, c] + (1.0 - up) * lights[0, 3 + c]
    X, Y, Z = X + LIFT * nx, Y + LIFT * ny, Z + LIFT * nz
    for k in range(1, lights.shape[0]):
        lx, ly, lz, reach, power = _towards(lights, k, X, Y, Z)
        if power <= 1e-4 or nx * lx + ny * ly + nz * lz <= 0.0:
            continue
        _, blocked = nearest(X, Y, Z, lx, ly, lz, 0.0, reach, True, solids, tables)
        if blocked >= 0:
            continue
        mark += 1 << (k - 1)
        falls, shine = power * max(bx * lx + by * ly + bz * lz, 0.0), 0.0
        if solids[n, PAINT + 6] > 0.0 and falls > 0.0:
            hx, hy, hz = lx + vx, ly + vy, lz + vz
            shine = (bx * hx + by * hy + bz * hz) / math.sqrt(hx * hx + hy * hy + hz * hz)
            shine = power * solids[n, PAINT + 6] * max(shine, 0.0) ** HIGHLIGHT
        out[0] += (red * falls + shine) * lights[k, 8]
        out[1] += (green * falls + shine) * lights[k, 9]
        out[2] += (blue * falls + shine) * lights[k, 10]
    return t, n, mark


@_part
def _painted(face, px, py, pz, nx, ny, nz, foot, solids, n, texels, levels, out):
    """out[:3] = the colour of a surface; returns its normal, tilted by the slopes of the colour."""
    a, b, i, j = _chart(face, px, py, pz, solids, n)
    scale, cos, sin, bump = solids[n, PAINT], solids[n, PAINT + 3], solids[n, PAINT + 4], solids[n, PAINT + 5]
    u = scale * (cos * a - sin * b) + solids[n, PAINT + 1] + 0.37 * face
    v = scale * (sin * a + cos * b) + solids[n, PAINT + 2] + 0.61 * face
    sampled(texels, levels, int(solids[n, TEXTURE + face]), u, v, scale * foot, out)
    gu = bump * (cos * out[3] + sin * out[4]) * solids[n, HALF + i]
    gv = bump * (cos * out[4] - sin * out[3]) * solids[n, HALF + j]
    i, j = MAP + 3 * i, MAP + 3 * j
    bx = nx - gu * solids[n, i] - gv * solids[n, j]
    by = ny - gu * solids[n, i + 1] - gv * solids[n, j + 1]
    bz = nz - gu * solids[n, i + 2] - gv * solids[n, j + 2]
    r = 1.0 / math.sqrt(bx * bx + by * by + bz * bz)
    return bx * r, by * r, bz * r


@_part
def _towards(lights, k, X, Y, Z):
    """The unit direction from a point to a light, how far away it is, and the share of its power that arrives."""
    lx, ly, lz = lights[k, 1], lights[k, 2], lights[k, 3]
    if lights[k, 0] == 0.0:
        return lx, ly, lz, np.inf, 1.0
    lx, ly, lz = lx - X, ly - Y, lz - Z
    far = math.sqrt(lx * lx + ly * ly + lz * lz)
    lx, ly, lz = lx / far, ly / far, lz / far
    cone = -(lx * lights[k, 4] + ly * lights[k, 5] + lz * lights[k, 6])
    power = min(max((cone - lights[k, 7]) / SOFT, 0.0), 1.0)
    return lx, ly, lz, far, power / (1.0 + (far / lights[k, 11]) ** 2)


@_jit
def view(camera, height_, width, solids, tables, texels, levels, lights, smooth):
    """(radiance (h, w, 3), depth (h, w), solid (h, w)) of one camera.

    Two rays more through each pixel whose neighbour shows another face or other shadows, if `smooth`.
    """
    radiance = np.empty((height_, width, 3), np.float32)
    depth = np.empty((height_, width))
    solid = np.empty((height_, width), np.int64)
    marks = np.empty((height_, width), np.int64)
    out = np.empty(5)
    for y in range(height_):
        for x in range(width):
            t, n, mark = _shade(float(x), float(y), camera, solids, tables, texels, levels, lights, out)
            depth[y, x], solid[y, x], marks[y, x] = t, n, mark
            for c in range(3):
                radiance[y, x, c] = out[c]
    for y in range(height_ if smooth else 0):
        for x in range(width):
            if not _edge(marks, y, x):
                continue
            for c in range(3):
                radiance[y, x, c] /= 3.0
            for k in range(2):
                u, v = x + AROUND[k][0], y + AROUND[k][1]
                _shade(u, v, camera, solids, tables, texels, levels, lights, out)
                for c in range(3):
                    radiance[y, x, c] += out[c] / 3.0
    return radiance, depth, solid


@_part
def _edge(marks, y, x):
    """Whether one of the four neighbours of a pixel bears another mark."""
    mark = marks[y, x]
    edge = x > 0 and marks[y, x - 1] != mark
    edge |= x + 1 < marks.shape[1] and marks[y, x + 1] != mark
    edge |= y > 0 and marks[y - 1, x] != mark
    edge |= y + 1 < marks.shape[0] and marks[y + 1, x] != mark
    return edge


@_jit
def depths(camera, xs, ys, solids, tables):
    """(depth, solid) along the rays through any points of a camera's image."""
    depth, solid = np.empty(xs.shape[0]), np.empty(xs.shape[0], np.int64)
    for i in range(xs.shape[0]):
        dx, dy, dz = _ray(camera, xs[i], ys[i])
        t, n = nearest(camera[12], camera[13], camera[14], dx, dy, dz, NEAR, np.inf, False, solids, tables)
        depth[i], solid[i] = t, n
    return depth, solid


@_jit
def carried(a, b, depth, solids, tables):
    """Where the points that camera a sees land in camera b: flow (h, w, 2), depth there, and whether it is hidden.

    A point is hidden where a solid lies between it and camera b, or it lies behind that camera; what encloses the place
    and both cameras hides nothing.
    """
    rows, columns = depth.shape
    flow, there = np.empty((rows, columns, 2)), np.empty((rows, columns))
    hidden = np.empty((rows, columns), np.bool_)
    ox, oy, oz = b[12], b[13], b[14]
    for y in range(rows):
        for x in range(columns):
            t = depth[y, x]
            dx, dy, dz = _ray(a, float(x), float(y))
            dx, dy, dz = a[12] + t * dx - ox, a[13] + t * dy - oy, a[14] + t * dz - oz
            z = b[6] * dx + b[7] * dy + b[8] * dz
            there[y, x] = z
            flow[y, x, 0] = b[9] * (b[0] * dx + b[1] * dy + b[2] * dz) / z + b[10] - x
            flow[y, x, 1] = b[9] * (b[3] * dx + b[4] * dy + b[5] * dz) / z + b[11] - y
            _, n = nearest(ox, oy, oz, dx, dy, dz, NEAR / z, 1.0 - SLACK, True, solids, tables)
            hidden[y, x] = n >= 0 or z <= 0.0
    return flow, there, hidden


# ---------------------------------------------------------------------------------------------------------- an image


@_jit
def toned(radiance, gain, veil, vignette, grain, noise, table):
    """An image from linear light: gain, veil, vignette, a shoulder above SHOULDER, noise, and a tone curve by table.

    The table holds the curve over the square root of light, which is where the dark has its detail.
    """
    rows, columns, _ = radiance.shape
    picture = np.empty((rows, columns, 3), np.float32)
    last, rest = table.shape[0] - 1, 1.0 - SHOULDER
    for y in range(rows):
        v = 2.0 * y / max(rows - 1, 1) - 1.0
        for x in range(columns):
            u = 2.0 * x / max(columns - 1, 1) - 1.0
            shade = 1.0 - 0.5 * vignette * (u * u + v * v)
            for c in range(3):
                light = (radiance[y, x, c] * gain[c] + veil) * shade
                if light > SHOULDER:
                    light = 1.0 - rest * math.exp((SHOULDER - light) / rest)
                if grain > 0.0:
                    light += grain * math.sqrt(0.15 + light) * noise[y, x, c]
                at = math.sqrt(min(max(light, 0.0), 1.0)) * last
                i = min(int(at), last - 1)
                picture[y, x, c] = table[i] + (at - i) * (table[i + 1] - table[i])
    return picture
