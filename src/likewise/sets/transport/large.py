"""The numba kernel for sets of some dozens of points and more: one problem at a time, eight columns a step.

A panel of eight such problems leaves the cache, and its Newton steps grow with the cube of the points. Here the kernel
K = exp((f + g − C)/γ) of one problem is kept in float32 (float64 where the tolerance asks for it), exponents and sums
are float64, and everything that is done with K is one pass: s = K w, h from s row by row, t = Kᵀ h while the rows are
still in the nearest cache. Such a pass is a Sinkhorn step, and as well a product with the matrix of Newton's equation,

    (diag(c) − Fᵀ diag(1/a) F) δ = b − c      for the column potentials, the rows being exact,

which conjugate gradients solve where Sinkhorn steps alone would take longer: with a rate of 0.99 they need 1400 passes
to 1e-6, conjugate gradients 70.
"""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays and lanes.

from __future__ import annotations

import math

import numpy as np

from likewise.sets.transport import simd
from likewise.sets.transport.kernels import FAR, STRIDE, W, absorb, cached, cost, divide, dual_value, part

FAINT = -87.0
"""Exponents below this are raised to it: e^−87 is the smallest that float32 holds at full precision."""
DRIFT = 40.0
"""Potentials that moved by more than this many γ since K was formed are absorbed and K is formed again."""
ROWS = 4
"""Rows of a pass at a time: 4 of 1000 float32 numbers are a third of the nearest cache."""


@part
def _sweep(K, line, w, a, h, t, m, newton):
    """s = K w; h = a / s, or a · s for a Newton product; t = Kᵀ h."""
    for j in range(0, line, W):
        simd.store(t, j, simd.splat(0.0))
    for i in range(0, m, ROWS):
        at = i * line
        p, q, x, y = simd.splat(0.0), simd.splat(0.0), simd.splat(0.0), simd.splat(0.0)
        for j in range(0, line, W):
            weight = simd.load(w, j)
            p = simd.load_fma(K, at + j, weight, p)
            q = simd.load_fma(K, at + line + j, weight, q)
            x = simd.load_fma(K, at + 2 * line + j, weight, x)
            y = simd.load_fma(K, at + 3 * line + j, weight, y)
        h[i], h[i + 1], h[i + 2], h[i + 3] = simd.total(p), simd.total(q), simd.total(x), simd.total(y)
        for r in range(i, i + ROWS):
            h[r] = a[r] * h[r] if newton else a[r] / max(h[r], 1e-300)
        p, q, x, y = simd.splat(h[i]), simd.splat(h[i + 1]), simd.splat(h[i + 2]), simd.splat(h[i + 3])
        for j in range(0, line, W):
            one = simd.load_fma(K, at + j, p, simd.load(t, j))
            two = simd.load_fma(K, at + line + j, q, simd.splat(0.0))
            one = simd.load_fma(K, at + 2 * line + j, x, one)
            two = simd.load_fma(K, at + 3 * line + j, y, two)
            simd.store(t, j, one + two)


@part
def _transforms(G, half, single, at, from_row, line, m, a, e, f, b, beside, g, t, w):
    """From any g: f_i = min_j (C_ij − g_j), g_j = min_i (C_ij − f_i) in one pass; the mean of C under a bᵀ."""
    mean = 0.0
    for j in range(0, line, W):
        simd.store(t, j, simd.splat(FAR))
    for i in range(m):
        norm, lowest, partial = simd.splat(e[i]), simd.splat(FAR), simd.splat(0.0)
        where = at + i * from_row
        for j in range(0, line, W):
            dear = cost(G, half, single, where + j, norm + simd.load(beside, j))
            simd.store(w, j, dear)
            lowest = simd.smaller(dear - simd.load(g, j), lowest)
            partial = simd.load_fma(b, j, dear, partial)
        f[i] = simd.least(lowest)
        mean += a[i] * simd.total(partial)
        lowest = simd.splat(f[i])
        for j in range(0, line, W):
            simd.store(t, j, simd.smaller(simd.load(w, j) - lowest, simd.load(t, j)))
    for j in range(0, line, W):
        simd.store(g, j, simd.where_positive(simd.load(b, j), simd.load(t, j), simd.splat(0.0)))
    return mean


@part
def _form_kernel(K, G, half, single, at, from_row, line, m, e, f, beside, g, inverse):
    """K = exp((f + g − C)/γ), and rows of zeros up to a multiple of ROWS."""
    scale, floor = simd.splat(inverse), simd.splat(FAINT)
    for i in range(m):
        norm, potential = simd.splat(e[i]), simd.splat(f[i])
        where = at + i * from_row
        for j in range(0, line, W):
            dear = cost(G, half, single, where + j, norm + simd.load(beside, j))
            x = ((potential + simd.load(g, j)) - dear) * scale
            simd.store(K, i * line + j, simd.exp(simd.larger(x, floor)))
    for k in range(m * line, -(-m // ROWS) * ROWS * line, W):
        simd.store(K, k, simd.splat(0.0))


@part
def _newton_step(K, line, a, b, u, v, t, scale, h, c, x, r, p, w, m, goal, most):
    """v ← v · exp(δ) with δ by conjugate gradients, diag(c) before them, until |r|₁ ≤ goal; the passes it took.

    On entry the rows are exact and t = Kᵀ u, so that c = v t are the column sums.
    """
    for i in range(0, m, W):
        share = simd.load(u, i)
        simd.store(scale, i, share * share / simd.larger(simd.load(a, i), simd.splat(1e-300)))
    slope = simd.splat(0.0)
    for j in range(0, line, W):
        column = simd.load(v, j) * simd.load(t, j)
        rest = simd.load(b, j) - column
        step = rest / simd.larger(column, simd.splat(1e-300))
        slope = simd.fma(rest, step, slope)
        simd.store(c, j, column)
        simd.store(r, j, rest)
        simd.store(p, j, step)
        simd.store(w, j, step * simd.load(v, j))
        simd.store(x, j, simd.splat(0.0))
    steepness = simd.total(slope)
    made = 0
    while made < most:
        _sweep(K, line, w, scale, h, t, m, True)
        made += 1
        bend = simd.splat(0.0)
        for j in range(0, line, W):
            q = simd.load(c, j) * simd.load(p, j) - simd.load(v, j) * simd.load(t, j)
            simd.store(t, j, q)
            bend = simd.load_fma(p, j, q, bend)
        curvature = simd.total(bend)
        if not curvature > 0.0:
            break
        length = simd.splat(steepness / curvature)
        left, slope = simd.splat(0.0), simd.splat(0.0)
        for j in range(0, line, W):
            simd.store(x, j, simd.load_fma(p, j, length, simd.load(x, j)))
            rest = simd.load(r, j) - length * simd.load(t, j)
            simd.store(r, j, rest)
            left = left + simd.magnitude(rest)
            slope = slope + rest * rest / simd.larger(simd.load(c, j), simd.splat(1e-300))
        if simd.total(left) <= goal:
            break
        before, steepness = steepness, simd.total(slope)
        again = simd.splat(steepness / before)
        for j in range(0, line, W):
            step = simd.load(r, j) / simd.larger(simd.load(c, j), simd.splat(1e-300))
            step = simd.load_fma(p, j, again, step)
            simd.store(p, j, step)
            simd.store(w, j, step * simd.load(v, j))
    longest = simd.splat(STRIDE)
    for j in range(0, line, W):
        longest = simd.larger(simd.magnitude(simd.load(x, j)), longest)
    shorten = simd.splat(STRIDE / -simd.least(simd.splat(0.0) - longest))
    for j in range(0, line, W):
        delta = simd.load(x, j) * shorten
        sane = simd.splat(2.0 * STRIDE) - simd.magnitude(delta)  # not positive for infinity and NaN
        delta = simd.where_positive(sane, delta, simd.splat(0.0))
        simd.store(v, j, simd.load(v, j) * simd.exp(delta))
    return made


@cached
def solve_large(
    K, G, half, single, stride, at, heights, widths, m_most, n_most, row_at, column_at, row_norms, row_weights, norms,
    weights, gamma, tol, policy, sharp, warm, keep, values, residuals, steps, f_out, g_out,
):  # fmt: skip
    """Solve problem after problem; arguments as those of solve_panels with one problem a panel.

    K is room for a kernel matrix, rows a multiple of 4, columns of 8. G and `half` are eight numbers longer than what
    they hold: the last step of a row reads on.
    """
    first, most, allowed, shrink, stage, loose = policy
    rows, columns = -(-m_most // W) * W, -(-n_most // W) * W
    a, u, f, e = np.empty(rows), np.empty(rows), np.empty(rows), np.empty(rows)
    scale, h = np.empty(rows), np.empty(rows)
    b, v, g, t, beside = np.empty(columns), np.empty(columns), np.empty(columns), np.empty(columns), np.empty(columns)
    c, x, r, q, w = np.empty(columns), np.empty(columns), np.empty(columns), np.empty(columns), np.empty(columns)
    for p in range(len(at)):
        m, n = heights[p], widths[p]
        line, tall = -(-n // W) * W, -(-m // W) * W
        from_row = stride if stride > 0 else n
        for i in range(tall):
            a[i] = row_weights[row_at[p] + i] if i < m else 0.0
            e[i] = row_norms[row_at[p] + i] if i < m else 0.0
            f[i] = 0.0
        for j in range(line):
            b[j] = weights[column_at[p] + j] if j < n else 0.0
            beside[j] = norms[column_at[p] + j] if j < n else FAR
            g[j] = g_out[column_at[p] + j] if warm and j < n else 0.0
        current, made, error = gamma, 0, FAR
        start, transform = not warm, True
        while True:
            if transform:
                mean = _transforms(G, half, single, at[p], from_row, line, m, a, e, f, b, beside, g, t, w)
                if start:
                    # how far from tight the start is: the mean of C − f − g under a bᵀ
                    slack = mean - simd.total(dual_value(a, b, f, g, tall // W, line // W))
                    while current * allowed < slack:
                        current *= shrink
                    start = False
            _form_kernel(K, G, half, single, at[p], from_row, line, m, e, f, beside, g, 1.0 / current)
            for i in range(m, tall):
                u[i] = 0.0
            final = current <= gamma
            limit, ceiling = (tol, most) if final else (loose, stage)
            for j in range(0, line, W):
                simd.store(v, j, simd.load(b, j))
            now, before, rested, rest = 0.0, FAR, 0.0, first
            while True:
                _sweep(K, line, v, a, u, t, m, False)
                now += 1.0
                away = simd.splat(0.0)
                for j in range(0, line, W):
                    away = away + simd.magnitude(simd.load(v, j) * simd.load(t, j) - simd.load(b, j))
                error = simd.total(away)
                if error <= limit or now >= ceiling or not error < FAR:
                    break
                turn = final and rested >= rest
                if turn and rested > 0.0 and error < 0.99 * before:
                    rate = math.log(error / before)
                    turn = math.log(limit / error) / rate > 4.0 + 1.5 * math.log(2.0 * error / limit) / math.sqrt(-rate)
                if turn:
                    goal = max(0.05 * error, 0.3 * limit)
                    now += _newton_step(
                        K, line, a, b, u, v, t, scale, h, c, x, r, q, w, m, goal, min(100.0, ceiling - now)
                    )
                    # where a step gained nothing, more Sinkhorn steps come before the next
                    rest = first if error > 0.5 * before and rested == 0.0 else 0.0
                    rested = 0.0
                else:
                    divide(b, t, v, line // W)
                    rested += 1.0
                before = error
            made += int(now)
            # Columns exact: a Sinkhorn step never adds to the L1 error, so the columns' bounds that of the rows now.
            divide(b, t, v, line // W)
            furthest = 0.0
            for i in range(m):
                furthest = max(furthest, abs(math.log(max(u[i], 1e-300) / max(a[i], 1e-300))))
            for j in range(n):
                furthest = max(furthest, abs(math.log(max(v[j], 1e-300) / max(b[j], 1e-300))))
            if final and (furthest <= DRIFT or made >= most):
                break
            absorb(a, u, f, tall // W, current)
            absorb(b, v, g, line // W, current)
            transform = not final
            current = max(current / shrink, gamma)
        steps[p], residuals[p] = made, error
        values[p] = 0.0
        if sharp:
            for i in range(m):
                norm, partial = simd.splat(e[i]), simd.splat(0.0)
                for j in range(0, line, W):
                    dear = cost(G, half, single, at[p] + i * from_row + j, norm + simd.load(beside, j))
                    partial = simd.load_fma(K, i * line + j, dear * simd.load(v, j), partial)
                values[p] += u[i] * simd.total(partial)
        absorb(a, u, f, tall // W, gamma)
        absorb(b, v, g, line // W, gamma)
        if not sharp:
            values[p] = simd.total(dual_value(a, b, f, g, tall // W, line // W))
        if keep:
            for i in range(m):
                f_out[row_at[p] + i] = f[i]
                for j in range(n):
                    G[at[p] + i * from_row + j] = K[i * line + j] * u[i] * v[j]
            for j in range(n):
                g_out[column_at[p] + j] = g[j]
