"""Numba kernels of the renderer: rays against unit shapes, mip-mapped photo textures, lights with cast shadows.

A solid is a unit shape seen through an affine map p = M (x − c): box |p|∞ ≤ 1, ball ‖p‖ ≤ 1, cylinder of radius 1 and
half height 1, sheet |p_x|, |p_y| ≤ 1 at p_z = h(p_x, p_y). The ray's parameter t is the same before and after the map;
directions have z = 1 in the camera, so that t is the depth. A height h is a quadratic B-spline of a table.
"""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays.

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import njit

from likewise.io import cache_folder

SHEET, BOX, BALL, CYLINDER = 0, 1, 2, 3
STEPS = 96
"""The most steps along a ray that may meet a height field."""
NEAR = 1e-3
"""Hits nearer than this, in depth, are not seen."""
SLACK = 1e-6
"""A point counts as seen if nothing is nearer than this share of the way to it."""
LIFT = 1e-5
"""How far, in metres, a shadow ray starts above its surface."""
HIGHLIGHT = 24.0
"""The exponent of the highlights."""


def _jit(function: Any) -> Any:
    """njit without the GIL, its machine code kept in the user's cache folder; no reassociation: same bytes."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_folder() / "numba")
    try:
        return njit(cache=True, nogil=True, error_model="numpy", boundscheck=False)(function)
    finally:
        numba.config.CACHE_DIR = before


# --------------------------------------------------------------------------------------------------------- one shape


@_jit
def height(table, x, y):
    """h and its slopes ∂h/∂x, ∂h/∂y at x, y ∈ [−1, 1]: a quadratic B-spline over the table's cells."""
    rows, columns = table.shape
    gx, gy = 0.5 * (columns - 2), 0.5 * (rows - 2)
    u, v = (x + 1.0) * gx, (y + 1.0) * gy
    i, j = min(max(int(u), 0), columns - 3), min(max(int(v), 0), rows - 3)
    u, v = u - i, v - j
    a0, a1, a2 = 0.5 * (1.0 - u) * (1.0 - u), 0.5 + u * (1.0 - u), 0.5 * u * u
    b0, b1, b2 = 0.5 * (1.0 - v) * (1.0 - v), 0.5 + v * (1.0 - v), 0.5 * v * v
    da0, da1, da2 = u - 1.0, 1.0 - 2.0 * u, u
    db0, db1, db2 = v - 1.0, 1.0 - 2.0 * v, v
    p0 = a0 * table[j, i] + a1 * table[j, i + 1] + a2 * table[j, i + 2]
    p1 = a0 * table[j + 1, i] + a1 * table[j + 1, i + 1] + a2 * table[j + 1, i + 2]
    p2 = a0 * table[j + 2, i] + a1 * table[j + 2, i + 1] + a2 * table[j + 2, i + 2]
    q0 = da0 * table[j, i] + da1 * table[j, i + 1] + da2 * table[j, i + 2]
    q1 = da0 * table[j + 1, i] + da1 * table[j + 1, i + 1] + da2 * table[j + 1, i + 2]
    q2 = da0 * table[j + 2, i] + da1 * table[j + 2, i + 1] + da2 * table[j + 2, i + 2]
    return b0 * p0 + b1 * p1 + b2 * p2, (b0 * q0 + b1 * q1 + b2 * q2) * gx, (db0 * p0 + db1 * p1 + db2 * p2) * gy


@_jit
def _slab(o, d, low, high):
    """Where a ray is between two parallel planes: (t0, t1), empty if t0 > t1."""
    if abs(d) < 1e-14:
        return (-np.inf, np.inf) if low <= o <= high else (np.inf, -np.inf)
    a, b = (low - o) / d, (high - o) / d
    return min(a, b), max(a, b)


@_jit
def _meet_height(ox, oy, oz, dx, dy, dz, first, last, table, limits):
    """The first crossing of a height field: steps that cannot overshoot (|g′| ≤ bound), then Newton's."""
    x0, x1 = _slab(ox, dx, -1.0, 1.0)
    y0, y1 = _slab(oy, dy, -1.0, 1.0)
    z0, z1 = _slab(oz, dz, limits[0], limits[1])
    t, end = max(x0, y0, z0, first), min(x1, y1, z1, last)
    if not t < end:
        return np.inf
    bound = abs(dz) + limits[2] * abs(dx) + limits[3] * abs(dy) + 1e-12
    h, sx, sy = height(table, ox + t * dx, oy + t * dy)
    g = oz + t * dz - h
    side = 1.0 if g > 0.0 else -1.0
    for _ in range(STEPS):
        slope = dz - sx * dx - sy * dy
        newton = t - g / slope if abs(slope) > 1e-12 else np.inf
        if abs(g) < 1e-12:
            return t if t < end else np.inf
        safe = t + abs(g) / bound
        close = side * g < 2e-3 and side * slope < 0.0 and newton <= t + 4.0 * (safe - t)
        t = newton if close else safe
        if t >= end:
            return np.inf
        h, sx, sy = height(table, ox + t * dx, oy + t * dy)
        g = oz + t * dz - h
    return t if abs(g) < 1e-7 else np.inf


@_jit
def _meet(kind, ox, oy, oz, dx, dy, dz, first, last, table, limits, rough):
    """The smallest t in (first, last) at which a ray meets a unit shape, or infinity."""
    if kind == SHEET:
        if rough:
            return _meet_height(ox, oy, oz, dx, dy, dz, first, last, table, limits)
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


@_jit
def nearest(ox, oy, oz, dx, dy, dz, first, last, casting, kinds, maps, bounds, relief, tables, limits):
    """(t, solid) of the first solid along a ray, (infinity, −1) if none; with `casting` any that casts shadows will do.

    A solid whose bounding ball the ray misses is passed over.
    """
    best, found = last, -1
    dd = dx * dx + dy * dy + dz * dz
    for k in range(kinds.shape[0]):
        if casting and bounds[k, 1] == 0.0:
            continue
        m = maps[k]
        ex, ey, ez = ox - m[9], oy - m[10], oz - m[11]
        if bounds[k, 0] < np.inf:
            along = ex * dx + ey * dy + ez * dz
            if ex * ex + ey * ey + ez * ez - along * along / dd > bounds[k, 0]:
                continue
        which = max(relief[k], 0)
        t = _meet(
            kinds[k],
            m[0] * ex + m[1] * ey + m[2] * ez,
            m[3] * ex + m[4] * ey + m[5] * ez,
            m[6] * ex + m[7] * ey + m[8] * ez,
            m[0] * dx + m[1] * dy + m[2] * dz,
            m[3] * dx + m[4] * dy + m[5] * dz,
            m[6] * dx + m[7] * dy + m[8] * dz,
            first,
            best,
            tables[which],
            limits[which],
            relief[k] >= 0,
        )
        if t < best:
            best, found = t, k
            if casting:
                return best, found
    return (best, found) if found >= 0 else (np.inf, -1)


@_jit
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


@_jit
def _normal(kind, face, px, py, pz, table, rough, m):
    """The unit normal in the world: Mᵀ times the normal of the unit shape."""
    nx, ny, nz = px, py, pz
    if kind == SHEET:
        nx, ny, nz = 0.0, 0.0, 1.0
        if rough:
            _, sx, sy = height(table, px, py)
            nx, ny = -sx, -sy
    elif kind == BOX or (kind == CYLINDER and face >= 4):
        side = 1.0 if face % 2 else -1.0
        nx, ny, nz = side * (face < 2), side * (2 <= face < 4), side * (face >= 4)
    elif kind == CYLINDER:
        nz = 0.0
    wx = m[0] * nx + m[3] * ny + m[6] * nz
    wy = m[1] * nx + m[4] * ny + m[7] * nz
    wz = m[2] * nx + m[5] * ny + m[8] * nz
    r = 1.0 / math.sqrt(wx * wx + wy * wy + wz * wz)
    return wx * r, wy * r, wz * r


@_jit
def _chart(kind, face, px, py, pz, half):
    """Metric coordinates (u, v) on a face and the local axes they run along."""
    axis = face // 2
    if kind == SHEET:
        return px * half[0], py * half[1], 0, 1
    if kind == CYLINDER and axis == 0:
        return math.atan2(py, px) * half[0], pz * half[2], 0, 2
    s = 1.0
    if kind == BALL:
        s = 1.0 / max(abs(px), abs(py), abs(pz))
    if axis == 0:
        return py * half[1] * s, pz * half[2] * s, 1, 2
    if axis == 1:
        return px * half[0] * s, pz * half[2] * s, 0, 2
    return px * half[0] * s, py * half[1] * s, 0, 1


# ---------------------------------------------------------------------------------------------------------- textures


@_jit
def _mirrored(x, size):
    """A coordinate folded into [0, size], and the sign of its direction there."""
    x = x % (2.0 * size)
    return (2.0 * size - x, -1.0) if x > size else (x, 1.0)


@_jit
def _texel(texels, curve, at, w, h, x, y, out, weight):
    """out[:3] += weight × the bilinear colour at (x, y) ∈ [0, w] × [0, h]; out[3:] the same of green's slopes."""
    x, y = min(max(x - 0.5, 0.0), w - 1.0), min(max(y - 0.5, 0.0), h - 1.0)
    i, j = int(x), int(y)
    fx, fy = x - i, y - j
    i1, j1 = min(i + 1, w - 1), min(j + 1, h - 1)
    p, q, r, s = at + j * w + i, at + j * w + i1, at + j1 * w + i, at + j1 * w + i1
    for c in range(3):
        a, b, d, e = curve[texels[p, c]], curve[texels[q, c]], curve[texels[r, c]], curve[texels[s, c]]
        top, low = a + fx * (b - a), d + fx * (e - d)
        out[c] += weight * (top + fy * (low - top))
        if c == 1:
            out[3] += weight * ((1.0 - fy) * (b - a) + fy * (e - d))
            out[4] += weight * (low - top)


@_jit
def sampled(texels, curve, levels, texture, u, v, foot, out):
    """out = linear RGB, then green's slopes along u and v, of a texture at (u, v) in units of its shorter side.

    Trilinear over two levels of its pyramid, mirrored beyond its borders; `foot` is the pixel's footprint in (u, v).
    """
    table = levels[texture]
    w0, h0 = table[0, 1], table[0, 2]
    short = float(min(w0, h0))
    x, sx = _mirrored(u * short, float(w0))
    y, sy = _mirrored(v * short, float(h0))
    level = min(max(math.log2(max(foot * short, 1e-9)), 0.0), table.shape[0] - 1.001)
    l0 = int(level)
    f = level - l0
    out[:] = 0.0
    for k in range(2):
        at, w, h = table[l0 + k, 0], table[l0 + k, 1], table[l0 + k, 2]
        _texel(texels, curve, at, w, h, x * w / w0, y * h / h0, out, f if k else 1.0 - f)
    out[3] *= sx
    out[4] *= sy


# ----------------------------------------------------------------------------------------------------------- shading


@_jit
def _shade(x, y, camera, scene, paint, photos, lights, ambient, out, paint_out):
    """One ray: out[:3] = linear radiance; returns depth, solid, and a signature that changes where edges are."""
    kinds, maps, bounds, relief, tables, limits, halves = scene
    surface, textures = paint
    texels, curve, levels = photos
    ox, oy, oz = camera[12], camera[13], camera[14]
    cx, cy = (x - camera[10]) / camera[9], (y - camera[11]) / camera[9]
    dx = camera[0] * cx + camera[3] * cy + camera[6]
    dy = camera[1] * cx + camera[4] * cy + camera[7]
    dz = camera[2] * cx + camera[5] * cy + camera[8]
    t, k = nearest(ox, oy, oz, dx, dy, dz, NEAR, np.inf, False, kinds, maps, bounds, relief, tables, limits)
    out[:] = 0.0
    if k < 0:
        return t, k, -1
    X, Y, Z = ox + t * dx, oy + t * dy, oz + t * dz
    m = maps[k]
    ex, ey, ez = X - m[9], Y - m[10], Z - m[11]
    px = m[0] * ex + m[1] * ey + m[2] * ez
    py = m[3] * ex + m[4] * ey + m[5] * ez
    pz = m[6] * ex + m[7] * ey + m[8] * ez
    kind, face, rough = kinds[k], _face(kinds[k], px, py, pz), relief[k] >= 0
    nx, ny, nz = _normal(kind, face, px, py, pz, tables[max(relief[k], 0)], rough, m)
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    vx, vy, vz = -dx / length, -dy / length, -dz / length
    facing = nx * vx + ny * vy + nz * vz
    if facing < 0.0:
        nx, ny, nz, facing = -nx, -ny, -nz, -facing
    lift = LIFT + 1e-5 * t
    X, Y, Z = X + lift * nx, Y + lift * ny, Z + lift * nz

    # the colour of the surface, and a normal tilted by its slopes
    s = surface[k]
    a, b, i, j = _chart(kind, face, px, py, pz, halves[k])
    u = s[0] * (s[3] * a - s[4] * b) + s[1] + 0.37 * face
    v = s[0] * (s[4] * a + s[3] * b) + s[2] + 0.61 * face
    foot = s[0] * t / camera[9] / math.sqrt(max(facing, 0.05))
    sampled(texels, curve, levels, textures[k, face], u, v, foot, paint_out)
    if s[7] > 0.0:  # a backdrop shines by itself
        for c in range(3):
            out[c] = paint_out[c] * ambient[6 + c]
        return t, k, k * 8 * 256 + face * 256
    gu = s[5] * (s[3] * paint_out[3] + s[4] * paint_out[4])
    gv = s[5] * (s[3] * paint_out[4] - s[4] * paint_out[3])
    bx = nx - gu * m[3 * i] * halves[k, i] - gv * m[3 * j] * halves[k, j]
    by = ny - gu * m[3 * i + 1] * halves[k, i] - gv * m[3 * j + 1] * halves[k, j]
    bz = nz - gu * m[3 * i + 2] * halves[k, i] - gv * m[3 * j + 2] * halves[k, j]
    r = 1.0 / math.sqrt(bx * bx + by * by + bz * bz)
    bx, by, bz = bx * r, by * r, bz * r

    up = 0.5 + 0.5 * bz
    for c in range(3):
        out[c] = paint_out[c] * (up * ambient[c] + (1.0 - up) * ambient[3 + c])
    lit = 0
    for n in range(lights.shape[0]):
        light = lights[n]
        if light[0] == 0.0:
            lx, ly, lz, reach, power = light[1], light[2], light[3], np.inf, 1.0
        else:
            lx, ly, lz = light[1] - X, light[2] - Y, light[3] - Z
            distance = math.sqrt(lx * lx + ly * ly + lz * lz)
            lx, ly, lz, reach = lx / distance, ly / distance, lz / distance, distance
            power = 1.0 / (1.0 + (distance / light[11]) ** 2)
            cone = -(lx * light[4] + ly * light[5] + lz * light[6])
            power *= min(max((cone - light[7]) / 0.15, 0.0), 1.0)
        towards = bx * lx + by * ly + bz * lz
        if power <= 1e-4 or towards <= 0.0 or nx * lx + ny * ly + nz * lz <= 0.0:
            continue
        _, blocked = nearest(X, Y, Z, lx, ly, lz, 0.0, reach, True, kinds, maps, bounds, relief, tables, limits)
        if blocked >= 0:
            continue
        lit += 1 << n
        hx, hy, hz = lx + vx, ly + vy, lz + vz
        shine = (bx * hx + by * hy + bz * hz) / math.sqrt(hx * hx + hy * hy + hz * hz)
        shine = s[6] * max(shine, 0.0) ** HIGHLIGHT
        for c in range(3):
            out[c] += (paint_out[c] * towards + shine) * power * light[8 + c]
    return t, k, (k * 8 + face) * 256 + lit


@_jit
def view(camera, height_, width, scene, paint, photos, lights, ambient, smooth):
    """(radiance (h, w, 3), depth (h, w), solid (h, w)) of one camera.

    Four rays more through each pixel whose neighbour shows another face or other shadows, if `smooth`.
    """
    radiance = np.empty((height_, width, 3))
    depth = np.empty((height_, width))
    solid = np.empty((height_, width), np.int64)
    marks = np.empty((height_, width), np.int64)
    out, scratch = np.empty(3), np.empty(5)
    for y in range(height_):
        for x in range(width):
            t, k, mark = _shade(float(x), float(y), camera, scene, paint, photos, lights, ambient, out, scratch)
            radiance[y, x], depth[y, x], solid[y, x], marks[y, x] = out, t, k, mark
    if not smooth:
        return radiance, depth, solid
    for y in range(height_):
        for x in range(width):
            mark = marks[y, x]
            edge = x > 0 and marks[y, x - 1] != mark
            edge |= x + 1 < width and marks[y, x + 1] != mark
            edge |= y > 0 and marks[y - 1, x] != mark
            edge |= y + 1 < height_ and marks[y + 1, x] != mark
            if not edge:
                continue
            radiance[y, x] = 0.0
            for n in range(4):
                u = x + (-0.375 + 0.25 * n)
                v = y + (0.125, -0.375, 0.375, -0.125)[n]
                _shade(u, v, camera, scene, paint, photos, lights, ambient, out, scratch)
                radiance[y, x] += 0.25 * out
    return radiance, depth, solid


@_jit
def depths(camera, xs, ys, scene):
    """(depth, solid) along the rays through any points of a camera's picture."""
    kinds, maps, bounds, relief, tables, limits, _ = scene
    depth, solid = np.empty(xs.shape[0]), np.empty(xs.shape[0], np.int64)
    for n in range(xs.shape[0]):
        cx, cy = (xs[n] - camera[10]) / camera[9], (ys[n] - camera[11]) / camera[9]
        dx = camera[0] * cx + camera[3] * cy + camera[6]
        dy = camera[1] * cx + camera[4] * cy + camera[7]
        dz = camera[2] * cx + camera[5] * cy + camera[8]
        depth[n], solid[n] = nearest(
            camera[12], camera[13], camera[14], dx, dy, dz, NEAR, np.inf, False,
            kinds, maps, bounds, relief, tables, limits,
        )  # fmt: skip
    return depth, solid


@_jit
def carried(a, b, depth, scene):
    """Where the points that camera a sees land in camera b: flow (h, w, 2), depth there, and whether it is hidden.

    A point is hidden where a solid lies between it and camera b, or it lies behind that camera.
    """
    kinds, maps, bounds, relief, tables, limits, _ = scene
    rows, columns = depth.shape
    flow, there = np.empty((rows, columns, 2)), np.empty((rows, columns))
    hidden = np.empty((rows, columns), np.bool_)
    ox, oy, oz = b[12], b[13], b[14]
    for y in range(rows):
        for x in range(columns):
            t = depth[y, x]
            cx, cy = (x - a[10]) / a[9], (y - a[11]) / a[9]
            dx = a[12] + t * (a[0] * cx + a[3] * cy + a[6]) - ox
            dy = a[13] + t * (a[1] * cx + a[4] * cy + a[7]) - oy
            dz = a[14] + t * (a[2] * cx + a[5] * cy + a[8]) - oz
            z = b[6] * dx + b[7] * dy + b[8] * dz
            there[y, x] = z
            flow[y, x, 0] = b[9] * (b[0] * dx + b[1] * dy + b[2] * dz) / z + b[10] - x
            flow[y, x, 1] = b[9] * (b[3] * dx + b[4] * dy + b[5] * dz) / z + b[11] - y
            _, k = nearest(
                ox, oy, oz, dx, dy, dz, NEAR / z, 1.0 - SLACK, False, kinds, maps, bounds, relief, tables, limits
            )
            hidden[y, x] = k >= 0 or z <= 0.0
    return flow, there, hidden
