"""CUDA's libdevice functions on NumPy arrays, for the interpreter. Semantics: the libdevice user's guide."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.math_functions import MATH_FUNCTIONS, MathFunction, names

Array = Any
_Function = tuple[Callable[..., Array], str]  # result type: "same" as the inputs, "bool", "int32", "int64", or another


def _special(name: str) -> Callable[..., Array]:
    """A function of torch.special, which has those that NumPy lacks."""

    def call(*args: Array) -> Array:
        import torch

        return getattr(torch.special, name)(*[torch.from_numpy(np.ascontiguousarray(a)) for a in args]).numpy()

    return call


def _in_double(op: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *args: op(*[a.astype(np.float64) if a.dtype.kind == "f" else a for a in args])


def _norm(*args: Array) -> Array:
    return np.sqrt(sum(a.astype(np.float64) ** 2 for a in args))


def _reverse_bits(x: Array) -> Array:
    unsigned = x.view(f"u{x.itemsize}")
    one, bits = unsigned.dtype.type(1), 8 * x.itemsize
    result = np.zeros_like(unsigned)
    for shift in range(bits):
        result |= ((unsigned >> unsigned.dtype.type(shift)) & one) << unsigned.dtype.type(bits - 1 - shift)
    return result.view(x.dtype)


def _same(**functions: Callable[..., Array]) -> dict[str, _Function]:
    return {name: (function, "same") for name, function in functions.items()}


def _first_set(x: Array) -> Array:
    return np.where(x == 0, 0, 8 * x.itemsize - _leading_zeros(x & -x))


def _of_record(record: MathFunction) -> _Function:
    """In the arguments' element type where NumPy has the function, else in float64."""
    function = record.on_arrays if record.keeps_type else _in_double(record.on_arrays)
    return function, {"test": "bool", "bits": "int32"}.get(record.takes, "same")


_INTEGERS = names("bits", "wide ints")
_RECORDS = {each.library_name: each for each in MATH_FUNCTIONS.values()}
_leading_zeros, _round_half_away = (MATH_FUNCTIONS[name].on_arrays for name in ("clz", "round"))
FLOAT_FUNCTIONS: dict[str, _Function] = {
    **_same(
        cbrt=np.cbrt, rcbrt=lambda x: 1 / np.cbrt(x),
        sinpi=_in_double(lambda x: np.sin(np.pi * np.fmod(x, 2.0))),
        cospi=_in_double(lambda x: np.cos(np.pi * np.fmod(x, 2.0))),
        remainder=lambda x, y: x - y * np.rint(x / y),
        rhypot=lambda x, y: 1 / np.hypot(x, y), norm3d=_norm, norm4d=_norm,
        rnorm3d=lambda *a: 1 / _norm(*a), rnorm4d=lambda *a: 1 / _norm(*a),
        fdim=lambda x, y: np.fmax(x - y, 0),
        logb=lambda x: np.floor(np.log2(np.abs(x))), saturatef=lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
        scalbn=np.ldexp, erfc=_special("erfc"), erfinv=_special("erfinv"), erfcx=_special("erfcx"),
        erfcinv=lambda x: _special("erfinv")(1 - x), normcdf=_special("ndtr"), normcdfinv=_special("ndtri"),
        lgamma=_special("gammaln"),
        tgamma=_in_double(lambda x: np.where(
            (x > 0) | (np.mod(np.floor(x), 2) == 0), 1.0, -1.0) * np.exp(_special("gammaln")(x))),
        j0=_special("bessel_j0"), j1=_special("bessel_j1"), y0=_special("bessel_y0"), y1=_special("bessel_y1"),
        cyl_bessel_i0=_special("i0"), cyl_bessel_i1=_special("i1"),
        fast_sinf=np.sin, fast_cosf=np.cos, fast_tanf=np.tan, fast_expf=np.exp,
        fast_exp10f=_in_double(lambda x: 10.0**x),
        fast_logf=np.log, fast_log2f=np.log2, fast_log10f=np.log10, fast_powf=np.power, fast_dividef=np.divide,
        fma_rn=_in_double(lambda x, y, z: x * y + z), sqrt_rn=np.sqrt, rsqrt_rn=lambda x: 1 / np.sqrt(x),
    ),
    "finitef": (np.isfinite, "bool"),
    "isfinited": (np.isfinite, "bool"), "signbit": (np.signbit, "bool"),
    "ilogb": (lambda x: np.floor(np.log2(np.abs(x))), "int32"),
    "llrint": (np.rint, "int64"), "llround": (_round_half_away, "int64"),
    "float2int_rn": (np.rint, "int32"), "float2int_rz": (np.trunc, "int32"), "float2int_rd": (np.floor, "int32"),
    "float2int_ru": (np.ceil, "int32"), "double2int_rn": (np.rint, "int32"), "double2int_rz": (np.trunc, "int32"),
    "float2ll_rn": (np.rint, "int64"), "float2ll_rz": (np.trunc, "int64"),
    "float_as_int": (lambda x: x.view(np.int32), "int32"), "double_as_longlong": (lambda x: x.view(np.int64), "int64"),
    "double2float_rn": (lambda x: x.astype(np.float32), "float32"),
    **{name: _of_record(each) for name, each in _RECORDS.items() if each.name not in _INTEGERS},
}  # fmt: skip

INT_FUNCTIONS: dict[str, _Function] = {
    **{name: _of_record(each) for name, each in _RECORDS.items() if each.name in (*_INTEGERS, "abs")},
    "brev": (_reverse_bits, "same"), "ffs": (_first_set, "int32"),
    "int2float_rn": (lambda x: x, "float32"), "ll2float_rn": (lambda x: x, "float32"),
    "int2double_rn": (lambda x: x, "float64"), "ll2double_rn": (lambda x: x, "float64"),
    "int_as_float": (lambda x: x.view(np.float32), "float32"),
    "longlong_as_double": (lambda x: x.view(np.float64), "float64"),
}  # fmt: skip
_MIXED = frozenset({"ldexp", "scalbn"})  # (float, int32)


def install(package: Any) -> None:
    """Put these functions in place of libdevice's in the private copy of Triton, `package`."""
    modules: list[Any] = []
    for name in ("libdevice", "cuda.libdevice", "hip.libdevice"):
        with contextlib.suppress(ImportError):
            modules.append(importlib.import_module(f"{package.__name__}.language.extra.{name}"))
    names = {name for module in modules for name, value in vars(module).items() if callable(value) and name[0] != "_"}
    for name in names:
        wrapper = _wrap(name, package)
        for module in modules:
            setattr(module, name, wrapper)


def _wrap(name: str, package: Any) -> Callable[..., Any]:
    language, interpreter = package.language, package.runtime.interpreter

    def function(*args: Any, _semantic: Any = None) -> Any:
        if name not in FLOAT_FUNCTIONS and name not in INT_FUNCTIONS:
            raise NotImplementedError(f"libdevice.{name} has no NumPy implementation in the interpreter")
        tensors = [_as_tensor(interpreter, language, arg) for arg in args]
        kinds = [t.dtype.scalar for t in tensors]
        first = next((k for k, a in zip(kinds, args) if isinstance(a, language.tensor)), kinds[0])
        table = INT_FUNCTIONS if first.is_int() else FLOAT_FUNCTIONS
        allowed = {"int32", "int64", "uint32", "uint64"} if first.is_int() else {"fp32", "fp64"}
        if name not in table or first.name not in allowed:
            raise TypeError(f"libdevice.{name} has no form for {first}; it takes " + " or ".join(sorted(allowed)))
        op, result = table[name]
        arrays = [
            t.handle.data if name in _MIXED else t.handle.data.astype(interpreter._get_np_dtype(first), copy=False)
            for t in tensors
        ]
        dtype = {"same": first, "bool": language.int1}.get(result) or getattr(language, result)
        values = np.asarray(op(*arrays))
        np_dtype = interpreter._get_np_dtype(dtype)
        if np_dtype.kind in "iu" and values.dtype.kind == "f":
            values = np.nan_to_num(values, nan=0.0, posinf=np.iinfo(np_dtype).max, neginf=np.iinfo(np_dtype).min)
        handle = interpreter.TensorHandle(values.astype(np_dtype, copy=False), dtype)
        if any(t.type.is_block() for t in tensors):
            return language.tensor(handle, language.block_type(dtype, list(values.shape)))
        return language.tensor(handle, dtype)

    functools.update_wrapper(function, function, assigned=())
    function.__name__ = name
    return function


def _as_tensor(interpreter: Any, language: Any, value: Any) -> Any:
    if isinstance(value, language.tensor):
        return value
    return interpreter.interpreter_semantic.to_tensor(value)
