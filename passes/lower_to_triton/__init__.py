"""Kernels become launches of isolated functions, and accesses to global buffers become pointer arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from tiledsl.analysis.affine import form_bounds, linear_form
from tiledsl.analysis.linear import Factors, LinearForm, constant_form, single_form
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, gluon, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, ScalarType, with_shape
from tiledsl.launch_options import LAUNCH_OPTIONS, check_launch_option, warp_size
from tiledsl.passes.gluon.lower_gluon import lower_gluon
from tiledsl.passes.index_arithmetic import materialize, product_of
from tiledsl.passes.lower_to_triton.blocks import lower_blocks
from tiledsl.passes.tile_values import zero
from tiledsl.passes.unused_options import changed, remark_unused

Access = tile.LoadOp | tile.StoreOp | tile.AtomicOp
_PROMOTED: tuple[type[Operation], ...] = (tile.AllocOp, tile.ReadOp, tile.WriteOp, tile.CopyOp)
Width = Literal["int32", "int64"]
INT32_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class LowerToTriton(Pass):
    """The last lowering: `tile.kernel` becomes `triton.launch`; `tile.load` and the like go through pointers.

    Before:  %x = tile.load %A[%row, %columns] mask=%m
    After:   %p = triton.addptr %A, %scalar_offset      (the scalar part: moves with block and loop indices)
             %q = triton.addptr %p, %tensor_offset      (the tile's shape: the same in every iteration)
             %x = triton.load %q mask=%m other=%zero

    Block loads and stores go through descriptors, which the host creates (blocks.py).

    Needs:   guard-accesses, promote-buffers: no on-chip buffers are left. Offsets are int32 where they provably fit.
    `index_bits` forces 32 or 64 bits for all offsets; 0 decides for each access. num_warps, num_stages, num_ctas,
    maxnreg and launch_pdl override T.Kernel's options for every launch (0 keeps them); the tuner sets these.
    """

    name = "lower-to-triton"
    index_bits: int = 0
    num_warps: int = 0
    num_stages: int = 0
    num_ctas: int = 0
    maxnreg: int = 0
    launch_pdl: int = 0

    def run(self, program: Program) -> None:
        self._check()
        func = program.root
        assert isinstance(func, tile.FuncOp), func.name
        kernels = [op for op in func.body if isinstance(op, tile.KernelOp)]
        names = _kernel_names(func, kernels)
        overrides = {option: getattr(self, option) for option in LAUNCH_OPTIONS if getattr(self, option)}
        for kernel, name in zip(kernels, names):
            for option, value in overrides.items():
                kernel.set_option(option, value)
            if targets_gluon(kernel):
                self._remark(kernel)
            _check_options(kernel, program.target)
            _KernelLowering(func, kernel, self.index_bits).run(name, program.target)
        for op in list(func.body):
            if isinstance(op, tile.AssumeOp):  # one of the host's, which has told its ranges by now
                op.erase()
            elif isinstance(op, (arith.FloorDivOp, arith.TruncDivOp)):
                _divide_upwards(op)

    def _remark(self, kernel: tile.KernelOp) -> None:
        given = {name: value for name, value in kernel.options if name in LAUNCH_OPTIONS and name != "launch_pdl"}
        own = changed(self, *LAUNCH_OPTIONS)
        names = {name: f"{self.name}.{name}" if f"{self.name}.{name}" in own else name for name in given}
        remark_unused(kernel, {names[name]: value for name, value in given.items()})

    def _check(self) -> None:
        if self.index_bits not in (0, 32, 64):
            raise TileError(
                f"lower-to-triton.index_bits is {self.index_bits}; it must be 32, 64, or 0 to choose for each access"
            )
        for option in LAUNCH_OPTIONS:
            if value := getattr(self, option):
                check_launch_option(f"lower-to-triton.{option}", option, value, ", or 0 as T.Kernel says")


def _divide_upwards(op: arith.FloorDivOp | arith.TruncDivOp) -> None:
    """(n + c - 1) // c  ==>  ceildiv(n, c), with Triton's own function; sizes are not negative."""
    divisor, total = constant_of(op.rhs), op.lhs.op
    if divisor is not None and divisor > 0 and isinstance(total, arith.AddOp) and constant_of(total.rhs) == divisor - 1:
        quotient = Builder.at(op).insert(arith.CeilDivOp(total.lhs, op.rhs, names=[op.out.name])).out
        op.out.replace_with(quotient)
        op.erase()
        if not total.out.uses:
            total.erase()


def _counts_multiprocessors(value: Value) -> bool:
    """Whether the host computes a number from that of the device's multiprocessors."""
    op = value.op
    if isinstance(op, triton.MultiprocessorsOp):
        return True
    return isinstance(op, arith.BinaryOp) and any(map(_counts_multiprocessors, op.operands))


def _check_options(kernel: tile.KernelOp, target: Any) -> None:
    """Raise TileError for launch options that the target does not have, except for the hint launch_pdl, which is
    dropped."""
    if kernel.option("launch_pdl") and (target is None or not target.has_dependent_launches):
        kernel.set_option("launch_pdl", None)
    if target is None or target.kind == "interpret":
        return
    options: dict[str, Any] = dict(kernel.options)
    warps, ctas = options.get("num_warps"), options.get("num_ctas")
    most = target.max_threads_per_block // target.warp_size
    if warps and warps > most:
        raise TileError(f"num_warps is {warps}; {target} has at most {most} warps in a block", kernel.loc)
    if ctas and ctas > 1 and not target.has_clusters:
        raise TileError(f"num_ctas is {ctas}, but {target} has no clusters of blocks; it must be 1", kernel.loc)


def _kernel_names(func: tile.FuncOp, kernels: Sequence[tile.KernelOp]) -> list[str]:
    wanted = [f"{func.sym_name}_kernel" if each.sym_name == "kernel" else each.sym_name for each in kernels]
    wanted = [re.sub(r"[^\x00-\x7f]", "_", each) for each in wanted]  # Triton's functions have names of ASCII
    names: list[str] = []
    taken = {func.sym_name, f"{func.sym_name}_into"}
    for base in wanted:
        name, number = base, 1
        while name in taken or (name == base and wanted.count(base) > 1):
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def launch_options(kernel: tile.KernelOp, target: Any) -> tuple[tuple[str, Any], ...]:
    """num_warps and num_stages of a launch, and the hints that Triton has options for."""
    hints: dict[str, Any] = dict(kernel.options)
    overlapped = (("launch_pdl", True),) if hints.get("launch_pdl") else ()
    if hints.get("pdl_trigger") and target is not None and target.has_dependent_launches:
        overlapped = (*overlapped, ("triggers", True))
    if hints.get("emitter") == "gluon":
        divided = any(isinstance(op, gluon.WarpGroupIdOp) for op in kernel.body)  # among consumers of four warps
        warps = 4 if divided else kernel.threads // warp_size(target)
        groups = hints.get("groups", 1)
        apart = (("groups", groups),) if groups > 1 else ()
        return (("num_warps", warps // groups), *overlapped, ("emitter", "gluon"), *apart)
    warps = int(hints.get("num_warps") or max(1, kernel.threads // warp_size(target)))
    warps = 1 << (warps.bit_length() - 1)  # Triton takes powers of two: 384 threads (with a producer warp group) give 8
    stages = int(hints.get("num_stages") or 1)
    return (
        ("num_warps", warps),
        ("num_stages", stages),
        *((key, hints[key]) for key in ("num_ctas", "maxnreg") if hints.get(key)),
        *overlapped,
    )


class _KernelLowering:
    """The lowering of one tile.kernel to a triton.launch."""

    def __init__(self, func: tile.FuncOp, kernel: tile.KernelOp, index_bits: int) -> None:
        self.func, self.kernel, self.index_bits = func, kernel, index_bits
        self.body = kernel.body
        self.ranges = Ranges(func)
        self.captured: dict[Value, Value] = {}  # host value -> value inside
        self.arguments: list[Value] = []
        self.types: dict[Operation, BufferType] = {}  # of the buffer that an operation accesses
        self.products: dict[tuple[Region, Factors, int, str], Value] = {}  # made earlier in the same region

    def run(self, name: str, target: Any) -> None:
        kernel, indices = self.kernel, self.body.args
        options = launch_options(kernel, target)
        kernel.regions.remove(self.body)
        self.body.parent = None
        launch = triton.LaunchOp(
            list(kernel.grid),
            [],
            sym_name=name,
            options=options,
            remarks=kernel.remarks,
            regions=[self.body],
            loc=kernel.loc,
        )
        self.launch = Builder.at(kernel).insert(launch)
        kernel.erase()
        for_gluon = kernel.option("emitter") == "gluon"
        ops = list(self.body.walk())
        for view in of_kinds(ops, tile.ViewOp):
            view.move_before(launch)  # a view of global memory: the host makes it
        blocks: list[tile.LoadBlockOp | tile.StoreBlockOp] = of_kinds(ops, tile.LoadBlockOp, tile.StoreBlockOp)
        lower_blocks(blocks, Builder.at(launch), for_gluon)
        if for_gluon:
            lower_gluon(launch, indices, kernel.option("persistent") is not False)
        else:
            at_start = Builder(self.body, self.body.first, kernel.loc)
            for axis, (index, extent) in enumerate(zip(indices, launch.grid, strict=True)):
                if constant_of(extent) == 1:
                    index.replace_with(at_start.constant(0, index.type))
                else:
                    index.replace_with(at_start.insert(triton.ProgramIdOp(axis=axis, names=[index.name])).result)
        self.body.set_args([])
        ops = list(self.body.walk())
        left = of_kinds(ops, *_PROMOTED)
        assert not left, f"{left[0]!r} is left; promote-buffers removes it"
        accesses: list[Access] = of_kinds(ops, tile.LoadOp, tile.StoreOp, tile.AtomicOp)
        for access in accesses:
            self.types[access] = tile.buffer_type(access.buffer)
        outside = {*self.func.body.args, *(value for op in self.func.body for value in op.results)}
        for op in ops:
            if not outside.isdisjoint(op.operands):
                op.set_operands([self.capture(value) if value in outside else value for value in op.operands])
        for access in accesses:
            self.lower_access(access)
        self.order_arguments()
        launch.set_field("arguments", self.arguments)
        counts = [number for number, value in enumerate(self.arguments) if _counts_multiprocessors(value)]
        launch.set_attribute("unspecialized", tuple(counts))

    def capture(self, value: Value) -> Value:
        """The value inside the kernel that stands for a host value: the constant again, or an argument."""
        inside = self.captured.get(value)
        if inside is None and isinstance(value.op, tile.ViewOp) and value.op.source.dtype == value.dtype:
            inside = self.captured[value] = self.capture(value.op.source)
        if inside is None:
            number = constant_of(value)
            if number is not None:
                inside = Builder(self.body, self.body.first, self.kernel.loc).constant(number, value.type)
            else:
                type = value.type
                inside = self.body.add_arg(ScalarType("*" + type.dtype) if isinstance(type, BufferType) else type)
                self.arguments.append(value)
                self.launch.set_field("arguments", self.arguments)
            inside.name = value.name
            self.captured[value] = inside
        return inside

    def order_arguments(self) -> None:
        """Order the arguments: the program's parameters, then workspaces and computed values in order of first use."""
        rank = {value: number for number, value in enumerate(self.func.body.args)}
        order = sorted(range(len(self.arguments)), key=lambda i: rank.get(self.arguments[i], len(rank)))
        self.arguments = [self.arguments[i] for i in order]
        self.body.set_args([self.body.args[i] for i in order])

    # Accesses

    def lower_access(self, op: Access) -> None:
        at = Builder.at(op)
        type = self.types[op]
        pointer = self.pointer(at, op.buffer, type, op.indices, tile.access_shape(op) or ())
        new: Operation
        if isinstance(op, tile.LoadOp):
            other = op.other
            if op.mask is not None and other is None:
                other = zero(at, (), type.dtype)
            new = at.insert(
                triton.LoadOp(
                    pointer,
                    op.mask,
                    other if op.mask is not None else None,
                    cache=op.cache,
                    eviction=op.eviction,
                    ring=op.ring,
                )
            )
        elif isinstance(op, tile.StoreOp):
            new = at.insert(triton.StoreOp(pointer, op.value, op.mask, cache=op.cache, eviction=op.eviction))
        else:
            new = at.insert(
                triton.AtomicOp(pointer, op.value, op.mask, op.compare, kind=op.kind, semantics=op.semantics)
            )
        for old, made in zip(op.results, new.results, strict=True):
            made.name = old.name
            old.replace_with(made)
        op.erase()

    def pointer(
        self, at: Builder, base: Value, type: BufferType, indices: Sequence[Value], shape: tuple[int, ...]
    ) -> Value:
        """Base + scalar offset + tensor offset, in this shape."""
        small = self.index_bits == 32 or self.index_bits == 0 and _max_offset(type) < INT32_ELEMENTS
        scalar, tensors = LinearForm(), LinearForm()
        for index, stride in zip(indices, self.strides(type)):
            form = linear_form(index, ranges=self.ranges)
            if (
                small
                and self.index_bits == 0
                and not any(self.is_near(part.times(stride), type) for part in form.split())
            ):
                # Both parts may be far outside the buffer while their sum is inside: keep the sum in one piece.
                form = LinearForm({(index,): 1})
            one, other = form.split()
            scalar, tensors = scalar.plus(one.times(stride)), tensors.plus(other.times(stride))
        width: Width = "int32" if small else "int64"
        for part in [scalar] if small else _by_sign(scalar):
            if part.terms:
                base = at.insert(triton.AddPtrOp(base, self.materialize(at, part, width))).result
        if tensors.terms:
            ends = form_bounds(tensors, self.ranges)
            fits = (
                small
                or self.index_bits == 0
                and ends is not None
                and ends[0] >= -INT32_ELEMENTS
                and ends[1] < INT32_ELEMENTS
            )
            offset = self.materialize(at, tensors, "int32" if fits else "int64")
            if offset.shape != shape:
                offset = at.insert(tensor.BroadcastOp(offset, result_types=[with_shape(shape, offset.dtype)])).result
            return at.insert(triton.AddPtrOp(base, offset)).result
        if shape:
            base = at.insert(tensor.BroadcastOp(base, result_types=[with_shape(shape, base.dtype)])).result
        return base

    def is_near(self, part: LinearForm, type: BufferType) -> bool:
        """Whether the other part of an offset into this buffer fits into int32, where the offset is inside of it."""
        ends = form_bounds(part, self.ranges)
        return ends is not None and ends[1] < INT32_ELEMENTS and _max_offset(type) - ends[0] < INT32_ELEMENTS

    def strides(self, type: BufferType) -> list[LinearForm]:
        """The distance between neighbours along each dimension, in elements."""
        if type.strides is not None:
            return [self.extent(stride) for stride in type.strides]
        sizes = map(self.extent, reversed(type.shape[1:]))
        return [*accumulate(sizes, LinearForm.times, initial=constant_form(1))][::-1] if type.shape else []

    def extent(self, dim: int | str) -> LinearForm:
        if isinstance(dim, int):
            return constant_form(dim)
        return single_form(self.capture(self.func.symbol(dim)))

    def materialize(self, at: Builder, form: LinearForm, width: Width) -> Value:
        """The operations for a sum that moves a pointer; a single index does so in whatever type it has."""
        match [*form.terms.items()]:
            case [((index,), 1)]:
                return index
            case _:
                return materialize(at, form, width, self.product)

    def product(self, at: Builder, factors: Factors, amount: int, width: str) -> Value:
        """One term; the region's own, if it already has one. A constant is wrapped as the sum is, which is right where
        the offset fits."""
        key = (at.region, factors, amount, width)
        if key not in self.products and factors and amount != 1:
            both = product_of(at, factors, 1, width), self.product(at, (), amount, width)
            self.products[key] = at.insert(arith.MulOp(*both)).result
        elif key not in self.products:
            self.products[key] = product_of(at, factors, amount, width)
        return self.products[key]


def _by_sign(form: LinearForm) -> list[LinearForm]:
    """What is added, with the constant, and what is subtracted. ptxas takes the wrong carry for a difference of 64 bits
    between a quotient and another term (carry-of-mulhi in tiledsl/runtime/hazards.py), but not between pointers."""
    signs = (True, False)
    return [LinearForm({key: n for key, n in form.terms.items() if (n > 0 or not key) is each}) for each in signs]


def _max_offset(type: BufferType) -> int:
    """The offset of a buffer's last element; a huge number if a dimension or stride is dynamic."""
    if type.strides is None:
        numel = type.numel()
        return INT32_ELEMENTS if numel is None else numel - 1
    offset = 0
    for dim, stride in zip(type.shape, type.strides):
        if isinstance(dim, str) or isinstance(stride, str):
            return INT32_ELEMENTS
        offset += (dim - 1) * stride
    return offset
