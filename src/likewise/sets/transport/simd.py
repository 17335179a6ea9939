"""Eight float64 lanes as one value inside numba kernels: one problem a lane, so that little problems fill the machine.

Numba has no vector type of its own and the autovectoriser cannot prove enough about array loops this short.
Here `Lanes` is a numba type whose machine form is LLVM's <8 x double>: two AVX2 registers, one AVX-512 register, four
NEON registers. Arrays stay plain 1-D; `load(x, i)` takes the eight numbers from x[i], and widens float32.
"""

# mypy: ignore-errors
# Code generation: what numba and llvmlite hand in here carries no types.

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

WIDTH = 8

_VEC = ir.VectorType(ir.DoubleType(), WIDTH)
_INT = ir.VectorType(ir.IntType(64), WIDTH)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"Lanes{WIDTH}")


lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VEC)


def _operation(op: Any, build: str) -> None:
    """Give the Python operator `op` on two Lanes the LLVM instruction `build`."""

    @type_callable(op)
    def typing(context: Any) -> Any:
        def typer(a: Any, b: Any) -> Any:
            return lanes if a == lanes and b == lanes else None

        return typer

    @lower_builtin(op, lanes, lanes)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, build)(*args, flags=("contract",))


for _op, _build in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _operation(_op, _build)


def _constant(value: float | int, vector: Any) -> Any:
    return ir.Constant(vector, [value] * WIDTH)


def _named(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an LLVM intrinsic by its full name."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> tuple[Any, Any, int]:
    """Where x[i : i + 8] lies, its LLVM type and the bytes of a number."""
    data = context.make_array(array_type)(context, builder, array).data
    kind = ir.VectorType(data.type.pointee, WIDTH)
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer()), kind, array_type.dtype.bitwidth // 8


def _loaded(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    at, kind, size = _place(context, builder, array_type, array, index)
    vector = builder.load(at)
    vector.align = size
    return vector if kind == _VEC else builder.fpext(vector, _VEC)


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """The lanes x[i], …, x[i + 7]."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _loaded(context, builder, sig.args[0], *args)

    return lanes(array, types.intp), code


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """x[i : i + 8] = value."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, kind, size = _place(context, builder, sig.args[0], args[0], args[1])
        written = builder.store(args[2] if kind == _VEC else builder.fptrunc(args[2], kind), at)
        written.align = size
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), code


@intrinsic
def splat(typingctx: Any, value: Any) -> Any:
    """All lanes the same number."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one = builder.insert_element(ir.Constant(_VEC, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(one, ir.Constant(_VEC, ir.Undefined), mask)

    return lanes(types.float64), code


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, in one rounding."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _named(builder, f"llvm.fma.v{WIDTH}f64", _VEC, *args)

    return lanes(lanes, lanes, lanes), code


@intrinsic
def load_fma(typingctx: Any, array: Any, index: Any, b: Any, c: Any) -> Any:
    """x[i : i + 8] · b + c: the commonest pair of instructions as one call, which halves what numba has to compile."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = _loaded(context, builder, sig.args[0], args[0], args[1])
        return _named(builder, f"llvm.fma.v{WIDTH}f64", _VEC, vector, args[2], args[3])

    return lanes(array, types.intp, lanes, lanes), code


@intrinsic
def load_one(typingctx: Any, first: Any, x: Any, y: Any, index: Any) -> Any:
    """The lanes x[i], … if `first`, else y[i], …; an if of Python's would count references in the innermost loop."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = cgutils.alloca_once(builder, _VEC)
        with builder.if_else(args[0]) as branches:
            for k, branch in zip((1, 2), branches, strict=True):
                with branch:
                    builder.store(_loaded(context, builder, sig.args[k], args[k], args[3]), found)
        return builder.load(found)

    return lanes(types.boolean, x, y, types.intp), code


def _compared(symbol: str) -> Any:
    """An intrinsic that picks, lane by lane, a where `a symbol b` and b elsewhere (b, too, where a is NaN)."""

    @intrinsic
    def pick(typingctx: Any, a: Any, b: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.select(builder.fcmp_ordered(symbol, *args), *args)

        return lanes(lanes, lanes), code

    return pick


smaller = _compared("<")
larger = _compared(">")


@intrinsic
def where_positive(typingctx: Any, test: Any, yes: Any, no: Any) -> Any:
    """yes in the lanes where test > 0, else no."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], _constant(0.0, _VEC)), args[1], args[2])

    return lanes(lanes, lanes, lanes), code


@intrinsic
def magnitude(typingctx: Any, a: Any) -> Any:
    """|a| in each lane."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _named(builder, f"llvm.fabs.v{WIDTH}f64", _VEC, *args)

    return lanes(lanes), code


@intrinsic
def total(typingctx: Any, a: Any) -> Any:
    """The sum over the lanes, in pairs."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), _VEC])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f64")
        return builder.call(add, (ir.Constant(ir.DoubleType(), -0.0), args[0]), fastmath=("reassoc",))

    return types.float64(lanes), code


@intrinsic
def least(typingctx: Any, a: Any) -> Any:
    """The smallest of the lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _named(builder, f"llvm.vector.reduce.fmin.v{WIDTH}f64", ir.DoubleType(), *args)

    return types.float64(lanes), code


@intrinsic
def all_at_most(typingctx: Any, a: Any, b: Any) -> Any:
    """Is a ≤ b in every lane? NaN is not."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        within = builder.fcmp_ordered("<=", *args)
        bits = builder.bitcast(within, ir.IntType(WIDTH))
        return builder.icmp_unsigned("==", bits, ir.Constant(ir.IntType(WIDTH), (1 << WIDTH) - 1))

    return types.boolean(lanes, lanes), code


@intrinsic
def _scale_by_power(typingctx: Any, p: Any, t: Any) -> Any:
    """p · 2^k, where k stands in the low mantissa bits of t = k + 1.5 · 2^52."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        k = builder.shl(builder.bitcast(args[1], _INT), _constant(52, _INT))
        return builder.bitcast(builder.add(builder.bitcast(args[0], _INT), k), _VEC)

    return lanes(lanes, lanes), code


_ROOT_HALF_BITS = int(np.float64(np.sqrt(0.5)).view(np.int64))
_MAGIC = 6755399441055744.0  # 1.5 · 2^52: adding it leaves the nearest integer in the low mantissa bits
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))


@intrinsic
def _exponent(typingctx: Any, x: Any) -> Any:
    """e, as a float64, with x = 2^e · m and m in [√½, √2)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        shifted = builder.sub(builder.bitcast(args[0], _INT), _constant(_ROOT_HALF_BITS, _INT))
        e = builder.ashr(shifted, _constant(52, _INT))
        whole = builder.bitcast(builder.add(e, _constant(_MAGIC_BITS, _INT)), _VEC)
        return builder.fsub(whole, _constant(_MAGIC, _VEC))

    return lanes(lanes), code


@intrinsic
def _mantissa(typingctx: Any, x: Any) -> Any:
    """m in [√½, √2) with x = 2^e · m."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], _INT)
        shifted = builder.sub(bits, _constant(_ROOT_HALF_BITS, _INT))
        high = builder.and_(shifted, _constant(-(1 << 52), _INT))
        return builder.bitcast(builder.sub(bits, high), _VEC)

    return lanes(lanes), code


def _polynomial(*coefficients: float) -> Any:
    """An intrinsic: the polynomial with these coefficients, the highest power first, one fma a coefficient (Horner)."""

    @intrinsic
    def value(typingctx: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            total = _constant(coefficients[0], _VEC)
            for c in coefficients[1:]:
                total = _named(builder, f"llvm.fma.v{WIDTH}f64", _VEC, total, args[0], _constant(c, _VEC))
            return total

        return lanes(lanes), code

    return value


_exp_series = _polynomial(*(1.0 / math.factorial(k) for k in range(12, -1, -1)))
_log_series = _polynomial(*(2.0 / k for k in range(21, 2, -2)))


@njit
def exp(x):
    """eˣ in each lane to 2 ulp for −708 ≤ x ≤ 708; below, the smallest normal number (about 3e-308)."""
    x = larger(x, splat(-708.0))
    t = fma(x, splat(1.4426950408889634), splat(_MAGIC))
    k = t - splat(_MAGIC)
    r = fma(k, splat(-0.6931471803691238), x)
    r = fma(k, splat(-1.9082149292705877e-10), r)
    return _scale_by_power(_exp_series(r), t)


@njit
def log(x):
    """log x in each lane for normal x > 0; a finite number, without meaning, for 0."""
    e = _exponent(x)
    m = _mantissa(x)
    s = (m - splat(1.0)) / (m + splat(1.0))
    z = s * s
    tail = fma(_log_series(z) * z, s, s + s)
    return fma(e, splat(0.6931471803691238), fma(e, splat(1.9082149292705877e-10), tail))
