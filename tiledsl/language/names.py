"""The names of the tile language: `__all__` of each module below, and what has other names or is from elsewhere."""

# ruff: noqa: F403

from __future__ import annotations

import tiledsl.language.cuda_functions as _cuda_functions
import tiledsl.language.dtypes as _dtypes
import tiledsl.language.expression as _expression
import tiledsl.language.maths as _maths
import tiledsl.language.reductions as _reductions
from tiledsl.frontend.program import PrimFunc as PrimFunc
from tiledsl.frontend.program import prim_func as prim_func
from tiledsl.language.allocation import *
from tiledsl.language.asynchronous import *
from tiledsl.language.atomics import *
from tiledsl.language.barriers import *
from tiledsl.language.buffer import *
from tiledsl.language.cuda_functions import *
from tiledsl.language.grid_barriers import *
from tiledsl.language.hints import *
from tiledsl.language.loops import *
from tiledsl.language.macros import *
from tiledsl.language.maths import *
from tiledsl.language.operations import *
from tiledsl.language.orders import *
from tiledsl.language.program import *
from tiledsl.language.random_numbers import *
from tiledsl.language.reducers import *
from tiledsl.language.reductions import *
from tiledsl.language.threads import *
from tiledsl.language.votes import *

PrimExpr = _expression.Expr
Symbol = _expression.Symbol
Var = _expression.Symbol
dtype = _dtypes.DType
type_annotation = _dtypes.canonical
is_float4, is_f8f6f4_family = _dtypes.is_float4, _dtypes.is_f8f6f4_family
is_float4_e2m1fn, is_float4_e2m1_unpacked = _dtypes.is_float4_e2m1fn, _dtypes.is_float4_e2m1_unpacked
float64, float32, float16, bfloat16 = (_dtypes.DTYPES[name] for name in ("float64", "float32", "float16", "bfloat16"))
float8_e4m3fn, float8_e5m2 = _dtypes.DTYPES["float8_e4m3fn"], _dtypes.DTYPES["float8_e5m2"]
float8_e4m3fnuz, float8_e5m2fnuz = _dtypes.DTYPES["float8_e4m3fnuz"], _dtypes.DTYPES["float8_e5m2fnuz"]
float4_e2m1fn = _dtypes.FLOAT4
int8, int16, int32, int64 = (_dtypes.DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_dtypes.DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
bool, float, int, uint = (_dtypes.canonical(name) for name in ("bool", "float", "int", "uint"))
float8_e4m3, half, double, tfloat32, short, long = (
    _dtypes.canonical(name) for name in ("float8_e4m3", "half", "double", "tfloat32", "short", "long")
)
exp, exp2, exp10, expm1, log, log2, log10, log1p = map(
    _maths.math_function, "exp exp2 exp10 expm1 log log2 log10 log1p".split()
)
sqrt, rsqrt, sin, cos, tan, asin, acos, atan = map(
    _maths.math_function, "sqrt rsqrt sin cos tan asin acos atan".split()
)
sinh, cosh, tanh, asinh, acosh, atanh = map(_maths.math_function, "sinh cosh tanh asinh acosh atanh".split())
erf, sigmoid, atan2, fmod, hypot, copysign, fma = map(
    _maths.math_function, "erf sigmoid atan2 fmod hypot copysign fma".split()
)
floor, ceil, trunc, rint, nearbyint = map(_maths.math_function, "floor ceil trunc rint nearbyint".split())
isnan, isinf, isfinite, popcount, clz = map(_maths.math_function, "isnan isinf isfinite popcount clz".split())
__exp, __exp10, __log, __log2, __log10, __sin, __cos, __tan = exp, exp10, log, log2, log10, sin, cos, tan
__ffs, __ldg = _cuda_functions.ffs, _cuda_functions.ldg
reduce_and, reduce_or = _reductions.reduce_bitand, _reductions.reduce_bitor

_FOUND = [name for name in globals() if not name.endswith("__") and name != "annotations"]
NAMES = sorted(name for name in _FOUND if not name.startswith("_"))
HIDDEN = [name for name in _FOUND if name.startswith("__")]  # as in CUDA C
