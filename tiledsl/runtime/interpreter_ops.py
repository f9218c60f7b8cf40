"""What the interpreting copy of Triton computes differently from Triton's own interpreter.

Triton's interpreter works on bf16's raw bits, truncates when it narrows to bf16, lets fp8 overflow, reads any address
it is given, and calls a user's combine function once an element. These replacements follow the GPU instead. Sources:
PTX ISA, `cvt` (rounding to nearest even; `.satfinite` for fp8; saturating float to integer, NaN to 0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.codegen.functions import SIGNATURE_TYPES
from tiledsl.ir.types import ELEMENTS

Array = Any
Handle = Any


class AddressError(Exception):
    """A load or a store outside every tensor that was passed to the kernel."""


def bf16_to_f32(bits: Array) -> Array:
    """float32 values of bf16 bit patterns held as uint16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array, truncate: bool = False) -> Array:
    """bf16 bit patterns, as uint16, of float32 values; rounded to nearest even unless `truncate`."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not truncate:
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        bits = np.where(np.isnan(values), bits | np.uint32(0x00400000), rounded)
    return (bits >> np.uint32(16)).astype(np.uint16)


# Triton's name -> (torch's name, largest finite value)
_FP8 = {SIGNATURE_TYPES[name]: (name, each.high) for name, each in ELEMENTS.items() if name.startswith("float8")}


@functools.cache
def _fp8_table(name: str) -> Array:
    import torch

    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    return codes.view(getattr(torch, _FP8[name][0])).to(torch.float32).numpy()


def _f32_to_fp8(values: Array, name: str) -> Array:
    import torch

    torch_name, largest = _FP8[name]
    clipped = np.ascontiguousarray(np.clip(values.astype(np.float32), -largest, largest))  # keeps NaN
    return torch.from_numpy(clipped).to(getattr(torch, torch_name)).view(torch.uint8).numpy()


def decode(data: Array, dtype_name: str) -> Array:
    """The numbers behind the raw bits of bf16 and fp8 data, as float32; other data as it is."""
    if dtype_name == "bf16" and data.dtype == np.uint16:
        return bf16_to_f32(data)
    if dtype_name in _FP8 and data.dtype == np.uint8:
        return _fp8_table(dtype_name)[data]
    return data


def encode(values: Array, dtype_name: str, np_dtype: Any, truncate: bool = False) -> Array:
    """Numbers as the interpreter stores them for a dtype, converted as the GPU converts."""
    if dtype_name == "bf16":
        return f32_to_bf16(np.asarray(values, dtype=np.float32), truncate)
    if dtype_name in _FP8:
        return _f32_to_fp8(values, dtype_name)
    if np_dtype.kind in "iu" and values.dtype.kind == "f":
        return _float_to_int(values, np_dtype)
    return values.astype(np_dtype)


def _float_to_int(values: Array, np_dtype: Any) -> Array:
    info = np.iinfo(np_dtype)
    wide = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0))
    top = float(info.max)  # of 64-bit types this rounds up to 2**63 or 2**64, which astype cannot take
    result = np.clip(wide, float(info.min), np.nextafter(top, 0.0) if top > info.max else top).astype(np_dtype)
    return np.where(wide >= top, np_dtype.type(info.max), result) if info.bits == 64 else result


def _torch_unary(name: str, values: Array) -> Array:
    import torch

    return getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(values))).numpy()


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of float32 arrays, rounded once.

    The product is exact in float64, and the sum is rounded to odd there, so that rounding it again is harmless: Boldo
    and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 57(4), 2008.
    """
    with np.errstate(all="ignore"):
        product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)  # what rounding lost: Knuth, TAOCP 2, 4.2.2
        lost = np.isfinite(total) & (error != 0) & (np.asarray(total).view(np.int64) & 1 == 0)
        return np.where(lost, np.nextafter(total, np.copysign(np.inf, error)), total).astype(np.float32)


def builder_class(interpreter: Any, language: Any) -> type:
    """The interpreter's builder with the differences; `interpreter` and `language` are modules of the private copy."""
    tensor_handle = interpreter.TensorHandle
    np_dtype_of = interpreter._get_np_dtype
    base: Any = interpreter.InterpreterBuilder
    int1 = language.int1

    class Builder(base):  # type: ignore[misc]
        regions: list[tuple[int, int]] | None = None  # memory of the arguments; None: addresses are not checked

        # conversions

        def get_bf16(self, value: float) -> Handle:
            return tensor_handle(f32_to_bf16(np.array([value], dtype=np.float32)), language.bfloat16)

        def cast_impl(self, src: Handle, dst_type: Any, truncate: bool = False) -> Handle:
            scalar = dst_type.scalar
            values = decode(src.data, src.dtype.scalar.name)
            return tensor_handle(encode(values, scalar.name, np_dtype_of(scalar), truncate), scalar)

        def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
            truncate = rounding_mode is not None and rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
            if truncate and dst_type.scalar.name != "bf16":
                return super().create_fp_to_fp(src, dst_type, rounding_mode)
            return self.cast_impl(src, dst_type, truncate)

        def create_int_to_ptr(self, src: Handle, dst_type: Any) -> Handle:
            self.regions = None  # the address came from memory: no argument need cover it
            return super().create_bitcast(src, dst_type)

        # arithmetic; bf16 in float32, rounded once

        def _elementwise(self, scalar: Any, operands: tuple[Handle, ...], op: Callable[..., Array]) -> Handle:
            name = scalar.name
            if name == "bf16":
                result = op(*[decode(operand.data, operand.dtype.scalar.name) for operand in operands])
            else:
                result = op(*[operand.data for operand in operands])
            if result.dtype == np.bool_:
                return tensor_handle(result, int1)
            if name == "bf16":
                return tensor_handle(f32_to_bf16(result), scalar)
            wanted = np_dtype_of(scalar)
            return tensor_handle(result if result.dtype == wanted else result.astype(wanted), scalar)

        def binary_op(self, lhs: Handle, rhs: Handle, op: Callable[..., Array]) -> Handle:
            if lhs.data.dtype == np.bool_ and rhs.data.dtype == np.bool_ and op in (np.add, np.subtract, np.multiply):
                return tensor_handle(
                    (op(lhs.data.astype(np.int8), rhs.data.astype(np.int8)) & 1).astype(np.bool_), int1
                )
            return self._elementwise(lhs.dtype.scalar, (lhs, rhs), op)

        def unary_op(self, arg: Handle, op: Callable[..., Array]) -> Handle:
            return self._elementwise(arg.dtype.scalar, (arg,), op)

        def ternary_op(self, lhs: Handle, rhs: Handle, other: Handle, op: Callable[..., Array]) -> Handle:
            if op is np.where:
                chosen = np.where(lhs.data, rhs.data, other.data)
                # Triton 3.6 has int32 beside uint32, which NumPy makes int64
                return tensor_handle(chosen.astype(np_dtype_of(other.dtype.scalar), copy=False), other.dtype.scalar)
            return self._elementwise(other.dtype.scalar, (lhs, rhs, other), op)

        def create_fneg(self, arg: Handle) -> Handle:
            return self.unary_op(arg, np.negative)

        def create_rsqrt(self, arg: Handle) -> Handle:
            return self.unary_op(arg, lambda x: np.reciprocal(np.sqrt(x)))

        def create_erf(self, arg: Handle) -> Handle:
            return self.unary_op(arg, lambda x: _torch_unary("erf", x))

        def create_minnumf(self, lhs: Handle, rhs: Handle) -> Handle:
            return self.binary_op(lhs, rhs, np.fmin)

        def create_maxnumf(self, lhs: Handle, rhs: Handle) -> Handle:
            return self.binary_op(lhs, rhs, np.fmax)

        def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
            if z.dtype.scalar.name == "bf16":
                return self.ternary_op(x, y, z, lambda a, b, c: a * b + c)
            if z.dtype.scalar.name == "fp32":  # before Triton 3.9 the interpreter rounds the product as well
                return tensor_handle(_fma(x.data, y.data, z.data), z.dtype.scalar)
            return super().create_fma(x, y, z)

        def get_all_ones_value(self, type: Any) -> Handle:
            wanted = np_dtype_of(type)
            if wanted.kind != "u":
                return super().get_all_ones_value(type)
            return tensor_handle(np.full(1, np.iinfo(wanted).max, dtype=wanted), type.scalar)  # 3.6 takes -1

        def create_dot(
            self, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any
        ) -> Handle:
            scalar = d.dtype.scalar
            wanted = np_dtype_of(scalar)
            if wanted.kind in "iu":
                # In float64 BLAS does it, and every int8 x int8 sum shorter than 2**39 is exact.
                product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
                return tensor_handle(product.astype(np.int64).astype(wanted) + d.data, scalar)
            compute = np.float64 if wanted == np.float64 else np.float32
            lhs, rhs = (decode(x.data, x.dtype.scalar.name).astype(compute, copy=False) for x in (a, b))
            total = np.matmul(lhs, rhs) + decode(d.data, scalar.name)
            return tensor_handle(encode(total, scalar.name, wanted), scalar)

        # memory

        def _check(self, ptrs: Handle, mask: Array, what: str) -> None:
            if self.regions is None:
                return
            addresses = ptrs.data if mask is None else ptrs.data[np.broadcast_to(mask, ptrs.data.shape)]
            if addresses.size == 0:
                return
            low, high = int(addresses.min()), int(addresses.max())
            size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
            for start, end in self.regions:
                if start <= low and high + size <= end:
                    return
            inside = np.zeros(addresses.shape, dtype=np.bool_)
            for start, end in self.regions:
                inside |= (addresses >= np.uint64(start)) & (addresses < np.uint64(max(start, end - size + 1)))
            if not inside.all():
                raise AddressError(self._describe(int(addresses[~inside].flat[0]), int((~inside).sum()), what))

        def _describe(self, address: int, count: int, what: str) -> str:
            regions = self.regions or []
            start, end = min(regions, key=lambda r: min(abs(address - r[0]), abs(address - r[1])), default=(0, 0))
            where = f"{start - address} bytes before" if address < start else f"{address - end} bytes past the end of"
            return f"{what} of {count} element(s) outside every tensor argument; the first is {where} the nearest one"

        def create_masked_load(
            self, ptrs: Handle, mask: Handle, other: Handle | None, *policy: Any, **named: Any
        ) -> Handle:
            self._check(ptrs, getattr(mask, "data", mask), "load")
            return super().create_masked_load(ptrs, mask, other, *policy, **named)

        def create_masked_store(self, ptrs: Handle, value: Handle, mask: Handle, *policy: Any, **named: Any) -> Any:
            self._check(ptrs, getattr(mask, "data", mask), "store")
            return super().create_masked_store(ptrs, value, mask, *policy, **named)

        def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, *rest: Any) -> Handle:
            self._check(ptr, None, "atomic")
            return super().create_atomic_cas(ptr, cmp, val, *rest)

        def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, *rest: Any) -> Handle:
            self._check(ptr, mask.data, "atomic")
            if op == interpreter._ir.ATOMIC_OP.XCHG and val.data.dtype.kind == "f":  # the interpreter swaps integers
                bits = tensor_handle(val.data.view(f"u{val.data.itemsize}"), val.dtype)
                old = super().create_atomic_rmw(op, ptr, bits, mask, *rest)
                return tensor_handle(old.data.view(val.data.dtype), val.dtype.scalar)
            if val.dtype.scalar.name != "bf16" or op != interpreter._ir.ATOMIC_OP.FADD:
                return super().create_atomic_rmw(op, ptr, val, mask, *rest)
            old = np.zeros(ptr.data.shape, dtype=np.uint16)
            load, store = interpreter._interpreter.load, interpreter._interpreter.store
            one = np.ones(1, dtype=np.bool_)
            active = np.broadcast_to(mask.data, ptr.data.shape)
            for index in np.ndindex(ptr.data.shape):  # one by one: addresses may repeat
                if active[index]:
                    place = np.array([ptr.data[index]], dtype=np.uint64)
                    before = load(place, one, np.zeros(1, dtype=np.uint16), np.dtype(np.uint16))
                    added = bf16_to_f32(val.data[index].reshape(1)) + bf16_to_f32(before)
                    store(place, f32_to_bf16(added), one)
                    old[index] = before[0]
            return tensor_handle(old, val.dtype.scalar)

    return Builder


def _sum(data: Array, axis: int | None = None, **options: Any) -> Array:
    """The sum as floats add: nothing changes when -0.0 is added, and 0.0 takes the sign of a sum of -0.0 away."""
    return np.asarray(np.sum(data, axis=axis, initial=-0.0 if data.dtype.kind == "f" else 0, **options))


def reduction(interpreter: Any, language: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`tl.reduce` and `tl.associative_scan` of the private copy: whole tensors at a time, log2(n) combine calls."""
    tensor_handle = interpreter.TensorHandle
    np_dtype_of = interpreter._get_np_dtype
    standard = language.standard
    direct_reduce: dict[Any, Callable[..., Array]] = {
        standard._sum_combine: _sum,
        standard._elementwise_max: np.fmax.reduce,
        standard._elementwise_min: np.fmin.reduce,
    }
    direct_scan: dict[Any, Callable[..., Array]] = {
        standard._sum_combine: np.cumsum,
        standard._prod_combine: np.cumprod,
    }

    def wrap(data: Array, dtype: Any) -> Any:
        if data.ndim == 0:
            return language.tensor(tensor_handle(data.reshape(1), dtype), dtype)
        return language.tensor(tensor_handle(data, dtype), language.block_type(dtype, list(data.shape)))

    def call(combine_fn: Any, lhs: list[Array], rhs: list[Array], dtypes: list[Any]) -> list[Array]:
        """combine_fn on pieces of any shape: tensor types want powers of two, so the pieces are padded."""
        count = lhs[0].shape[0]
        padded = 1 << max(0, count - 1).bit_length()

        def pad(data: Array) -> Array:
            return data if padded == count else np.concatenate([data, data[: padded - count]])

        result = combine_fn(*[wrap(pad(x), t) for side in (lhs, rhs) for x, t in zip(side, dtypes)])
        result = list(result) if isinstance(result, (tuple, list)) else [result]
        assert len(result) == len(dtypes), "the combine function returns a value for each tensor"
        pieces = []
        for value, dtype, like in zip(result, dtypes, lhs):
            shape = (padded, *like.shape[1:])
            if isinstance(value, language.tensor):
                data = encode(decode(value.handle.data, value.dtype.scalar.name), dtype.name, np_dtype_of(dtype))
            else:
                data = encode(np.asarray(getattr(value, "value", value)), dtype.name, np_dtype_of(dtype))
            pieces.append(np.broadcast_to(data, shape)[:count])
        return pieces

    def prepare(tensors: Any, axis: Any) -> tuple[list[Array], list[Any], int | None]:
        inputs = list(tensors) if isinstance(tensors, (tuple, list)) else [tensors]
        axis = getattr(axis, "value", axis)
        shape = inputs[0].handle.data.shape
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis {axis} out of bounds for shape {list(shape)}")
        return [t.handle.data for t in inputs], [t.dtype.scalar for t in inputs], None if axis is None else int(axis)

    def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
        arrays, dtypes, at = prepare(input, axis)
        keep = bool(getattr(keep_dims, "value", keep_dims))
        rank = arrays[0].ndim
        if len(arrays) == 1 and combine_fn in direct_reduce:
            op, dtype = direct_reduce[combine_fn], dtypes[0]
            result = np.asarray(op(decode(arrays[0], dtype.name), axis=at, keepdims=keep))
            made = encode(result, dtype.name, np_dtype_of(dtype))
            return wrap(made.reshape(result.shape), dtype)  # bfloat16's bits come back in one dimension at least
        pieces = [a.reshape(-1) if at is None else np.moveaxis(a, at, 0) for a in arrays]
        while (count := pieces[0].shape[0]) > 1:
            even = count // 2 * 2
            merged = call(combine_fn, [p[0:even:2] for p in pieces], [p[1:even:2] for p in pieces], dtypes)
            pieces = [np.concatenate([m, p[even:]]) for m, p in zip(merged, pieces)]
        results = [np.asarray(p[0]) for p in pieces]
        if keep:
            results = [r.reshape((1,) * rank) if at is None else np.expand_dims(r, at) for r in results]
        out = tuple(wrap(r, t) for r, t in zip(results, dtypes))
        return out if isinstance(input, (tuple, list)) else out[0]

    def scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
        arrays, dtypes, at = prepare(input, axis)
        flip = bool(getattr(reverse, "value", reverse))
        pieces = [np.moveaxis(a, at or 0, 0)[:: -1 if flip else 1] for a in arrays]
        if len(pieces) == 1 and combine_fn in direct_scan:
            values = direct_scan[combine_fn](decode(pieces[0], dtypes[0].name), axis=0)
            pieces = [encode(values, dtypes[0].name, np_dtype_of(dtypes[0]))]
        else:
            step, count = 1, pieces[0].shape[0]
            while step < count:
                merged = call(combine_fn, [p[:-step] for p in pieces], [p[step:] for p in pieces], dtypes)
                pieces = [np.concatenate([p[:step], m]) for p, m in zip(pieces, merged)]
                step *= 2
        finished = [np.ascontiguousarray(np.moveaxis(p[:: -1 if flip else 1], 0, at or 0)) for p in pieces]
        out = tuple(wrap(p, t) for p, t in zip(finished, dtypes))
        return out if isinstance(input, (tuple, list)) else out[0]

    return reduce, scan
