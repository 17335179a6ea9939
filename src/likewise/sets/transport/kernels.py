"""Numba kernels of smoothed transport: eight problems at a time, one a SIMD lane (see _simd).

A panel holds eight problems of at most m × n points. Arrays are flat and lane-major: entry (i, j) of lane l is at
(i · n + j) · 8 + l, entry i of a vector at i · 8 + l. A padded row or column has weight 0 and cost FAR.

The smoothed problem [MLML Eq. 4–7] has the solution F = diag(u) K diag(v) with K = exp(−(C − f − g)/γ). The kernel
1. starts f and g at the hard c-transforms f_i = min_j C_ij, g_j = min_i (C_ij − f_i), which leave a 1 in every row and
   column of K, so that nothing underflows before the first sum (absorbing rows alone does underflow);
2. makes a few Sinkhorn steps, then
3. Newton steps on the dual: with the columns exact, (diag(r) − F diag(1/b) Fᵀ) δ = a − r for the row potentials, with
   a bound on ‖δ‖∞ because the dual is a sum of exponentials, and columns made exact again after each.
Step 3 turns hundreds of iterations at small γ into a handful; across lanes its factorisation is as vector-friendly as
the rest. Where γ is very small against the costs, a few stages with larger γ come first.
"""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays and lanes.

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit

from likewise.media import cache_folder
from likewise.sets.transport import simd

FAR = 1e30
"""The cost of a padded row or column."""
W = simd.WIDTH
STRIDE = 3.0
"""The longest Newton step, in units of γ: larger ones leave the region where the quadratic model holds."""


_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_VERSION = hashlib.sha256(b"".join(file.read_bytes() for file in _SOURCES)).hexdigest()[:16]
"""Whether machine code is still right: numba looks at the file of a kernel only, not at those of its parts."""


def cached(function: Any) -> Any:
    """njit without the GIL, its machine code kept in the user's cache folder."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_folder() / "numba" / _VERSION)
    try:
        return njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, fastmath={"reassoc", "contract"})(
            function
        )
    finally:
        numba.config.CACHE_DIR = before


_piece = njit(inline="always")
"""A part of the kernel that stands in it once: written into it, so that there is less to compile."""
part = njit(nogil=True, error_model="numpy", boundscheck=False)
"""A part of the kernel that is called from several places: compiled once."""


@part
def _dots(A, at, gap, along, w, count, rows, out, out_at):
    """out[r] = Σ_c A[at + r · gap + c · along] · w[c] for r < rows, c < count.

    Four at a time, so that the multiply-adds of one need not wait for each other. Rows of K: gap = n · 8, along = 8;
    columns: gap = 8, along = n · 8.
    """
    r = 0
    while r + 4 <= rows:
        p, q, x, y = simd.splat(0.0), simd.splat(0.0), simd.splat(0.0), simd.splat(0.0)
        k = at + r * gap
        for c in range(0, count * W, W):
            weight = simd.load(w, c)
            p = simd.load_fma(A, k, weight, p)
            q = simd.load_fma(A, k + gap, weight, q)
            x = simd.load_fma(A, k + 2 * gap, weight, x)
            y = simd.load_fma(A, k + 3 * gap, weight, y)
            k += along
        simd.store(out, out_at + r * W, p)
        simd.store(out, out_at + (r + 1) * W, q)
        simd.store(out, out_at + (r + 2) * W, x)
        simd.store(out, out_at + (r + 3) * W, y)
        r += 4
    while r < rows:
        p = simd.splat(0.0)
        for c in range(count):
            p = simd.load_fma(A, at + r * gap + c * along, simd.load(w, c * W), p)
        simd.store(out, out_at + r * W, p)
        r += 1


@part
def divide(a, s, u, m):
    """u = a / s, and 0 where both are 0: the marginal a becomes exact."""
    for i in range(0, m * W, W):
        simd.store(u, i, simd.load(a, i) / simd.larger(simd.load(s, i), simd.splat(1e-300)))


@part
def _transforms(C, a, b, f, g, m, n):
    """From any g: f_i = min_j (C_ij − g_j), g_j = min_i (C_ij − f_i): C − f − g gets a zero in every row and column."""
    step = n * W
    for j in range(0, step, W):
        simd.store(g, j, simd.where_positive(simd.load(b, j), simd.load(g, j), simd.splat(0.0)))
    for i in range(m):
        least = simd.splat(FAR)
        for j in range(0, step, W):
            least = simd.smaller(simd.load(C, i * step + j) - simd.load(g, j), least)
        simd.store(f, i * W, simd.where_positive(simd.load(a, i * W), least, simd.splat(0.0)))
    for j in range(0, step, W):
        simd.store(g, j, simd.splat(FAR))
    for i in range(m):
        least = simd.load(f, i * W)
        for j in range(0, step, W):
            simd.store(g, j, simd.smaller(simd.load(C, i * step + j) - least, simd.load(g, j)))


@part
def _form_kernel(C, f, g, K, m, n, gamma):
    """K = exp((f + g − C)/γ)."""
    scale = simd.splat(1.0 / gamma)
    for i in range(m):
        potential = simd.load(f, i * W)
        for j in range(0, n * W, W):
            x = (potential + simd.load(g, j)) - simd.load(C, i * n * W + j)
            simd.store(K, i * n * W + j, simd.exp(x * scale))


@_piece
def _newton_matrix(K, u, v, b, r, S, t, m, n):
    """S = diag(r) − F diag(1/b) Fᵀ, lower triangle; row 0 is left aside, which takes out the null vector 1."""
    step = n * W
    for j in range(0, step, W):
        w = simd.load(v, j)
        w = w * w / simd.larger(simd.load(b, j), simd.splat(1e-300))
        simd.store(t, step + j, simd.splat(0.0) - w)
    for i in range(1, m):
        for j in range(0, step, W):
            simd.store(t, j, simd.load(K, i * step + j) * simd.load(t, step + j))
        _dots(K, step, step, W, t, n, i, S, (i * m + 1) * W)
        scale = simd.load(u, i * W)
        for k in range(1, i + 1):
            at = (i * m + k) * W
            simd.store(S, at, simd.load(S, at) * scale * simd.load(u, k * W))
        at = (i * m + i) * W
        simd.store(S, at, simd.load(S, at) + simd.load(r, i * W))


@_piece
def _solve_positive(S, x, m):
    """x ← S⁻¹ x by L D Lᵀ on rows 1 … m − 1; a pivot lost to rounding gets step 0."""
    zero, one = simd.splat(0.0), simd.splat(1.0)
    for i in range(1, m):
        row = i * m * W
        for k in range(1, i):
            s = simd.load(S, row + k * W)
            for q in range(W, k * W, W):
                s = s - simd.load(S, row + q) * simd.load(S, k * m * W + q)
            simd.store(S, row + k * W, s)
        diagonal = simd.load(S, row + i * W)
        floor = simd.fma(diagonal, simd.splat(1e-13), simd.splat(1e-290))
        y = simd.load(x, i * W)
        for k in range(1, i):
            s = simd.load(S, row + k * W)
            scaled = s * simd.load(S, (k * m + k) * W)
            diagonal = diagonal - s * scaled
            y = y - scaled * simd.load(x, k * W)
            simd.store(S, row + k * W, scaled)
        simd.store(S, row + i * W, simd.where_positive(diagonal - floor, one / diagonal, zero))
        simd.store(x, i * W, y)
    for i in range(m - 1, 0, -1):
        y = simd.load(x, i * W) * simd.load(S, (i * m + i) * W)
        for k in range(i + 1, m):
            y = y - simd.load(S, (k * m + i) * W) * simd.load(x, k * W)
        simd.store(x, i * W, y)


@_piece
def _newton_step(K, u, v, a, b, s, x, S, t, m, n):
    """u ← u · exp(δ) with S δ = a − r, shortened to ‖δ‖∞ ≤ STRIDE; s = K v on entry."""
    for i in range(0, m * W, W):
        r = simd.load(u, i) * simd.load(s, i)
        simd.store(s, i, r)
        simd.store(x, i, simd.load(a, i) - r)
    _newton_matrix(K, u, v, b, s, S, t, m, n)
    _solve_positive(S, x, m)
    longest = simd.splat(STRIDE)
    for i in range(W, m * W, W):
        longest = simd.larger(simd.magnitude(simd.load(x, i)), longest)
    shorten = simd.splat(STRIDE) / longest
    for i in range(W, m * W, W):
        delta = simd.load(x, i) * shorten
        sane = simd.splat(2.0 * STRIDE) - simd.magnitude(delta)  # not positive for infinity and NaN
        delta = simd.where_positive(sane, delta, simd.splat(0.0))
        simd.store(u, i, simd.load(u, i) * simd.exp(delta))


@_piece
def _row_error(a, u, s, m):
    """Σ_i |u_i s_i − a_i|: the L1 marginal error, columns being exact."""
    total = simd.splat(0.0)
    for i in range(0, m * W, W):
        total = total + simd.magnitude(simd.load(u, i) * simd.load(s, i) - simd.load(a, i))
    return total


@part
def absorb(a, u, f, m, gamma):
    """f ← f + γ log(u / a)."""
    tiny = simd.splat(1e-300)
    for i in range(0, m * W, W):
        ratio = simd.larger(simd.load(u, i), tiny) / simd.larger(simd.load(a, i), tiny)
        simd.store(f, i, simd.fma(simd.splat(gamma), simd.log(ratio), simd.load(f, i)))


@part
def dual_value(a, b, f, g, m, n):
    """Σ a f + Σ b g = ⟨C, F⟩ + γ KL(F ‖ a bᵀ) at the solution, wrong only to second order in the marginal error."""
    total = simd.splat(0.0)
    for i in range(0, m * W, W):
        total = simd.load_fma(a, i, simd.load(f, i), total)
    for j in range(0, n * W, W):
        total = simd.load_fma(b, j, simd.load(g, j), total)
    return total


@_piece
def _sharp_value(C, K, u, v, m, n):
    """⟨C, F⟩."""
    total = simd.splat(0.0)
    for i in range(m):
        part = simd.splat(0.0)
        for j in range(0, n * W, W):
            part = simd.load_fma(K, i * n * W + j, simd.load(C, i * n * W + j) * simd.load(v, j), part)
        total = simd.load_fma(u, i * W, part, total)
    return total


@part
def cost(G, half, single, at, norms):
    """‖p‖² + ‖q‖² − 2 G in eight lanes, never below 0; the product stands in `half` (float32) where `single`."""
    product = simd.load_one(single, half, G, at)
    return simd.larger(simd.fma(product, simd.splat(-2.0), norms), simd.splat(0.0))


@cached
def solve_panels(
    G, half, single, stride, at, heights, widths, m_most, n_most, row_at, column_at, row_norms, row_weights, norms,
    weights, gamma, tol, policy, sharp, warm, keep, values, residuals, steps, f_out, g_out,
):  # fmt: skip
    """Solve panel after panel.

    Panel p has heights[p] × widths[p] points. Its costs are C = ‖p‖² + ‖q‖² − 2 G: inner products in the flat array G
    (float64, or `half`, float32, where `single`) from at[p], a row every `stride` numbers (0: widths[p] · 8);
    row_norms, row_weights from row_at[p], norms, weights from column_at[p], lane-major. policy = (Sinkhorn steps first,
    steps at most, slack allowed at the start in units of γ, factor between stages of γ, steps a stage, error that ends
    a stage). With warm, g_out holds potentials to start from. With keep, G is overwritten by the plans and f_out, g_out
    by the potentials. values, residuals (8 a panel) and steps (1 a panel) are the result.
    """
    first, most, allowed, shrink, stage, loose = policy
    C, K = np.empty(m_most * n_most * W), np.empty(m_most * n_most * W)
    f, u, x = np.empty(m_most * W), np.empty(m_most * W), np.empty(m_most * W)
    a, s = np.empty(m_most * W), np.empty(m_most * W)
    b, g, v, t = np.empty(n_most * W), np.empty(n_most * W), np.empty(n_most * W), np.empty(2 * n_most * W)
    S = np.empty(m_most * m_most * W)
    for p in range(len(at)):
        m, n = heights[p], widths[p]
        line = stride if stride > 0 else n * W
        for i in range(0, m * W, W):
            simd.store(a, i, simd.load(row_weights, row_at[p] + i))
        for j in range(0, n * W, W):
            simd.store(b, j, simd.load(weights, column_at[p] + j))
            simd.store(g, j, simd.load(g_out, column_at[p] + j) if warm else simd.splat(0.0))
        mean = simd.splat(0.0)
        for i in range(m):
            norm = simd.load(row_norms, row_at[p] + i * W)
            part = simd.splat(0.0)
            for j in range(0, n * W, W):
                c = cost(G, half, single, at[p] + i * line + j, norm + simd.load(norms, column_at[p] + j))
                simd.store(C, i * n * W + j, c)
                part = simd.load_fma(b, j, c, part)
            mean = simd.load_fma(a, i * W, part, mean)
        _transforms(C, a, b, f, g, m, n)
        current = gamma
        if not warm:
            # how far from tight the start is: the largest, over lanes, of the mean of C − f − g under a bᵀ
            simd.store(x, 0, mean - dual_value(a, b, f, g, m, n))
            slack = max(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])
            while current * allowed < slack:
                current *= shrink
        made = 0
        error = simd.splat(FAR)
        while True:
            _form_kernel(C, f, g, K, m, n, current)
            final = current <= gamma
            limit = simd.splat(tol if final else loose)
            ceiling = most if final else stage
            for j in range(0, n * W, W):
                simd.store(v, j, simd.load(b, j))
            now = 0
            while True:
                _dots(K, 0, n * W, W, v, n, m, s, 0)
                if now > 0:
                    error = _row_error(a, u, s, m)
                    if now >= ceiling or simd.all_at_most(error, limit):
                        break
                if now < first or now % 16 == 15:
                    divide(a, s, u, m)
                else:
                    _newton_step(K, u, v, a, b, s, x, S, t, m, n)
                _dots(K, 0, W, n * W, u, m, n, t, 0)
                divide(b, t, v, n)
                now += 1
            made += now
            if final:
                break
            absorb(b, v, g, n, current)
            current = max(current / shrink, gamma)
            _transforms(C, a, b, f, g, m, n)
        steps[p] = made
        simd.store(residuals, p * W, error)
        absorb(a, u, f, m, gamma)
        absorb(b, v, g, n, gamma)
        simd.store(values, p * W, _sharp_value(C, K, u, v, m, n) if sharp else dual_value(a, b, f, g, m, n))
        if keep:
            for i in range(m):
                simd.store(f_out, row_at[p] + i * W, simd.load(f, i * W))
                for j in range(0, n * W, W):
                    plan = simd.load(K, i * n * W + j) * simd.load(u, i * W) * simd.load(v, j)
                    simd.store(G, at[p] + i * line + j, plan)
            for j in range(0, n * W, W):
                simd.store(g_out, column_at[p] + j, simd.load(g, j))


@cached
def gather_pairs(
    P, P_weights, P_offsets, Q, Q_weights, Q_offsets, left, right, at, heights, widths, row_at, column_at,
    G, row_norms, row_weights, norms, weights,
):  # fmt: skip
    """Lay pairs out as panels for solve_panels: pair p · 8 + l is lane l of panel p; G = −½ ‖p − q‖², padding FAR away.

    Costs are summed from differences, not from inner products: nothing is lost to cancellation.
    """
    d = P.shape[1]
    for p in range(len(at)):
        m, n = heights[p], widths[p]
        for lane in range(W):
            k = p * W + lane
            top, beside = P_offsets[left[k]], Q_offsets[right[k]]
            mine, other = P_offsets[left[k] + 1] - top, Q_offsets[right[k] + 1] - beside
            for i in range(m):
                row_weights[row_at[p] + i * W + lane] = P_weights[top + i] if i < mine else 0.0
                row_norms[row_at[p] + i * W + lane] = 0.0 if i < mine else FAR
            for j in range(n):
                weights[column_at[p] + j * W + lane] = Q_weights[beside + j] if j < other else 0.0
                norms[column_at[p] + j * W + lane] = 0.0 if j < other else FAR
            for i in range(m):
                for j in range(n):
                    total = 0.0
                    if i < mine and j < other:
                        for c in range(d):
                            difference = P[top + i, c] - Q[beside + j, c]
                            total += difference * difference
                    G[at[p] + (i * n + j) * W + lane] = -0.5 * total


@cached
def spread_columns(lanes, column_at, g_at, other, g, out):
    """Ragged column potentials into the lanes of their panels, for a warm start."""
    for p in range(len(column_at)):
        for lane in range(lanes):
            k = p * lanes + lane
            for j in range(other[k]):
                out[column_at[p] + j * lanes + lane] = g[g_at[k] + j]


@cached
def scatter_pairs(
    lanes, at, heights, widths, row_at, column_at, G, f, g, mine, other, F_at, f_at, g_at, F_out, f_out, g_out
):
    """Plans and potentials out of their panels into ragged arrays, pair after pair."""
    for p in range(len(at)):
        n = widths[p]
        for lane in range(lanes):
            k = p * lanes + lane
            if F_at[k] >= 0:
                for i in range(mine[k]):
                    for j in range(other[k]):
                        F_out[F_at[k] + i * other[k] + j] = G[at[p] + (i * n + j) * lanes + lane]
            if f_at[k] >= 0:
                for i in range(mine[k]):
                    f_out[f_at[k] + i] = f[row_at[p] + i * lanes + lane]
                for j in range(other[k]):
                    g_out[g_at[k] + j] = g[column_at[p] + j * lanes + lane]


@cached
def weigh_plans(first, second, left, right, plans, starts, weights, Y, rows, columns, moved):
    """Add the row sums, the column sums and F Y of each weighted plan to the points that it joins."""
    d = Y.shape[1]
    for k in range(len(left)):
        w, at = weights[k], starts[k]
        if w == 0.0:
            continue
        i0, j0 = first[left[k]], second[right[k]]
        m, n = first[left[k] + 1] - i0, second[right[k] + 1] - j0
        for i in range(i0, i0 + m):
            whole = 0.0
            for j in range(j0, j0 + n):
                f = w * plans[at]
                at += 1
                whole += f
                columns[j] += f
                for c in range(d):
                    moved[i, c] += f * Y[j, c]
            rows[i] += whole


@cached
def sum_costs(first, second, left, right, plans, starts, P, Q, out):
    """⟨C, F⟩ of each plan under the Euclidean cost of the points."""
    d = P.shape[1]
    for k in range(len(left)):
        at, total = starts[k], 0.0
        for i in range(first[left[k]], first[left[k] + 1]):
            for j in range(second[right[k]], second[right[k] + 1]):
                cost = 0.0
                for c in range(d):
                    cost += (P[i, c] - Q[j, c]) ** 2
                total += cost * plans[at]
                at += 1
        out[k] = total
