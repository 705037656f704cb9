"""exp and tanh as straight-line arithmetic, so that LLVM turns loops over them into vectors.

A libm call per element is about twenty times slower. Every argument is clamped first: there is no
branch, no slow path, and no result that is denormal.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"
# mypy: disable-error-code="misc, untyped-decorator, import-untyped"

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

# `contract` lets LLVM fuse a·b + c, which only helps. Nothing that reorders sums is allowed: the
# range reductions below live off cancellation. The error model keeps a test for zero out of every
# division: with it no loop vectorises.
_arithmetic = njit(fastmath={"contract"}, error_model="numpy", inline="always")


@intrinsic
def _bits(typingctx, x):
    """Reinterpret a float as the integer of its width."""
    result = types.int32 if x == types.float32 else types.int64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return result(x), codegen


@intrinsic
def _from_bits(typingctx, i):
    """Reinterpret an integer as the float of its width."""
    result = types.float32 if i == types.int32 else types.float64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return result(i), codegen


@intrinsic
def _shift_left(typingctx, i, count):
    """i << count in the width of i (Numba's own operator widens 32 bits to 64)."""

    def codegen(context, builder, signature, args):
        amount = context.cast(builder, args[1], signature.args[1], signature.args[0])
        return builder.shl(args[0], amount)

    return i(i, count), codegen


@intrinsic
def _add(typingctx, i, j):
    """i + j in the width of i."""

    def codegen(context, builder, signature, args):
        return builder.add(args[0], args[1])

    return i(i, j), codegen


@intrinsic
def _clamp(typingctx, x, limit):
    """x, or ±limit beyond it: two selections, where `if` would make blocks. NaN stays NaN."""

    def codegen(context, builder, signature, args):
        value, high = args
        low = builder.fneg(high)
        value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
        return builder.select(builder.fcmp_ordered(">", value, high), high, value)

    return x(x, x), codegen


@intrinsic
def flushed(typingctx, x, least):
    """x, or zero where |x| < least, before it becomes denormal. NaN stays NaN."""

    def codegen(context, builder, signature, args):
        value, least = args
        size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [value.type]), [value])
        small = builder.fcmp_ordered("<", size, least)
        return builder.select(small, ir.Constant(value.type, 0.0), value)

    return x(x, x), codegen


@intrinsic
def distinct(typingctx):
    """Promise LLVM that the arrays which the function around it takes do not overlap."""

    def codegen(context, builder, signature, args):
        for argument in context.call_conv.get_arguments(builder.function):
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def stream(typingctx, target, source, x):
    """target[x : x + 16] = source[x : x + 16] past the caches; the target is aligned to them."""

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(context.get_value_type(signature.args[0].dtype), 16)
        to, source = (
            builder.gep(context.make_array(t)(context, builder, a).data, [args[2]])
            for t, a in zip(signature.args[:2], args[:2], strict=True)
        )
        value = builder.load(builder.bitcast(source, vector.as_pointer()), align=4)
        store = builder.store(value, builder.bitcast(to, vector.as_pointer()), align=64)
        one = ir.Constant(ir.IntType(32), 1)
        store.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return context.get_dummy_value()

    return types.none(target, source, x), codegen


def exp(x: Any) -> Any:
    """exp(x), x clamped to ±87 (float32) or ±700 (float64).

    x = n ln 2 + r with |r| ≤ ln(2)/2; the Taylor polynomial of exp(r) is scaled by 2ⁿ in its bits.
    """
    raise NotImplementedError("for compiled code")


def exp_twice(x: Any) -> Any:
    """e^{2x}, x clamped to ±40 (float32) or ±300 (float64).

    With d = 1/(e^{2x} + 1) tanh is (e^{2x} − 1)d and its derivative 4e^{2x}d², where 1 − tanh²
    would cancel.
    """
    raise NotImplementedError("for compiled code")


def tanh(x: Any) -> Any:
    """tanh(x) = (e^{2x} − 1)/(e^{2x} + 1)."""
    raise NotImplementedError("for compiled code")


# float32: |r|⁷/7! < 1.2e-7. The head of ln 2 has 12 bits, so that n·head is exact.
_LOG2E_32 = np.float32(1 / math.log(2))
_HEAD_32 = np.float32(math.floor(math.log(2) * 2**12) / 2**12)
_TAIL_32 = np.float32(math.log(2) - float(_HEAD_32))
# Adding 1.5·2²³ rounds to an integer, and leaves that integer in the low bits.
_SHIFTER_32 = np.float32(1.5 * 2**23)
_EXP_LIMIT_32 = np.float32(87.0)
_E6, _E5, _E4, _E3, _E2 = (np.float32(1 / math.factorial(i)) for i in (6, 5, 4, 3, 2))
_ONE_32 = np.float32(1.0)


@_arithmetic
def _exp32(x):
    x = _clamp(x, _EXP_LIMIT_32)
    shifted = x * _LOG2E_32 + _SHIFTER_32
    n = shifted - _SHIFTER_32
    r = (x - n * _HEAD_32) - n * _TAIL_32
    y = ((((_E6 * r + _E5) * r + _E4) * r + _E3) * r + _E2) * r + _ONE_32
    y = y * r + _ONE_32
    return _from_bits(_add(_bits(y), _shift_left(_bits(shifted), 23)))


# float64: |r|¹³/13! < 2e-16. The head of ln 2 has 36 bits.
_LOG2E_64 = 1 / math.log(2)
_HEAD_64 = math.floor(math.log(2) * 2**36) / 2**36
# ln 2 = Σ 1/(i 2ⁱ), in exact fractions: float64 cannot hold the remainder's digits by itself.
_TAIL_64 = float(sum(Fraction(1, i * 2**i) for i in range(1, 120)) - Fraction(_HEAD_64))
_SHIFTER_64 = 1.5 * 2**52
_EXP_LIMIT_64 = 700.0
_D12, _D11, _D10, _D9, _D8, _D7, _D6, _D5, _D4, _D3, _D2 = (
    1 / math.factorial(i) for i in range(12, 1, -1)
)


@_arithmetic
def _exp64(x):
    x = _clamp(x, _EXP_LIMIT_64)
    shifted = x * _LOG2E_64 + _SHIFTER_64
    n = shifted - _SHIFTER_64
    r = (x - n * _HEAD_64) - n * _TAIL_64
    y = ((((_D12 * r + _D11) * r + _D10) * r + _D9) * r + _D8) * r + _D7
    y = ((((y * r + _D6) * r + _D5) * r + _D4) * r + _D3) * r + _D2
    y = (y * r + 1.0) * r + 1.0
    return _from_bits(_add(_bits(y), _shift_left(_bits(shifted), 52)))


# Beyond these |x| tanh has long been ±1 and its derivative is nothing to any sum.
_TWICE_LIMIT_32 = np.float32(40.0)
_TWICE_LIMIT_64 = 300.0
# e^{2x} = 2ⁿ e^{2r}, x = n ln(2)/2 + r: the factor two sits in the constants. One reduction is
# enough: its error, 1e-8 n, grows to 1e-6 at most, where tanh and its derivative are flat.
_TWO_LOG2E_32 = np.float32(2 / math.log(2))
_HALF_LN2_32 = np.float32(math.log(2) / 2)
_T6, _T5, _T4, _T3, _T2, _T1 = (np.float32(2**i / math.factorial(i)) for i in (6, 5, 4, 3, 2, 1))


@_arithmetic
def _exp_twice32(x):
    x = _clamp(x, _TWICE_LIMIT_32)
    shifted = x * _TWO_LOG2E_32 + _SHIFTER_32
    r = x - (shifted - _SHIFTER_32) * _HALF_LN2_32
    y = ((((_T6 * r + _T5) * r + _T4) * r + _T3) * r + _T2) * r + _T1
    y = y * r + _ONE_32
    return _from_bits(_add(_bits(y), _shift_left(_bits(shifted), 23)))


@_arithmetic
def _exp_twice64(x):
    x = _clamp(x, _TWICE_LIMIT_64)
    return _exp64(x + x)


@_arithmetic
def _tanh32(x):
    e = _exp_twice32(x)
    return (e - _ONE_32) / (e + _ONE_32)


@_arithmetic
def _tanh64(x):
    e = _exp_twice64(x)
    return (e - 1.0) / (e + 1.0)


@overload(exp, inline="always")
def _exp(x):
    return (lambda x: _exp32(x)) if x == types.float32 else (lambda x: _exp64(x))


@overload(tanh, inline="always")
def _tanh(x):
    return (lambda x: _tanh32(x)) if x == types.float32 else (lambda x: _tanh64(x))


@overload(exp_twice, inline="always")
def _exp_twice(x):
    return (lambda x: _exp_twice32(x)) if x == types.float32 else (lambda x: _exp_twice64(x))
