"""Triton source from a program at the triton level: one module that imports torch and triton, and nothing of ours."""

from __future__ import annotations

from typing import Any

from tiledsl.analysis.gluon.words import in_fours
from tiledsl.codegen.emitted import EmittedKernel, EmittedModule
from tiledsl.codegen.functions import SIGNATURE_TYPES, combine_function
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.alternating import AlternatingWriter
from tiledsl.codegen.gluon.kernel import GluonKernelWriter
from tiledsl.codegen.gluon.rings import RingWriter
from tiledsl.codegen.host import HostWriter, debug_options
from tiledsl.codegen.host_descriptors import (
    BOTH_DESCRIPTORS,
    DESCRIPTOR_IMPORT,
    DESCRIPTOR_NAMES,
    DESCRIPTORS,
    MULTIPROCESSOR_NAMES,
    MULTIPROCESSORS,
)
from tiledsl.codegen.kernels import KernelWriter
from tiledsl.codegen.names import RESERVED, comment
from tiledsl.dialects import gluon, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation

__all__ = ["EmittedKernel", "EmittedModule", "emit"]

_WRITERS: dict[str, type[KernelWriter]] = {"triton": KernelWriter, "gluon": GluonKernelWriter, "rings": RingWriter}


def _writer(launch: triton.LaunchOp) -> type[KernelWriter]:
    first = launch.body.first
    if isinstance(first, gluon.ScheduleOp) and first.alternate:
        return AlternatingWriter
    return _WRITERS[dict(launch.options).get("emitter", "triton")]


def emit(root: Operation) -> EmittedModule:
    """The module for a program that lower-to-triton has been through. The same IR gives the same text."""
    assert isinstance(root, tile.FuncOp), root.name
    entry = root.sym_name + "_" if root.sym_name in RESERVED else root.sym_name
    into = f"{entry}_into" if root.outputs else entry
    launches = [op for op in root.body if isinstance(op, triton.LaunchOp)]
    module_names = {entry, into, *(launch.sym_name for launch in launches)}
    for launch in launches:
        if launch.sym_name in RESERVED:
            raise TileError(
                f"a kernel cannot be named {launch.sym_name!r}: the emitted source needs that name", launch.loc
            )
    host_ops = {type(op) for op in root.body}
    supporting: list[str] = []
    imports = ["import torch", "import triton", "import triton.language as tl"]
    described = {bool(op.swizzle) for op in root.body if isinstance(op, triton.DescriptorOp)}
    if described:
        module_names |= DESCRIPTOR_NAMES
        supporting += [DESCRIPTORS, *([BOTH_DESCRIPTORS] * (len(described) == 2))]
    if triton.MultiprocessorsOp in host_ops:
        module_names |= MULTIPROCESSOR_NAMES
        supporting.append(MULTIPROCESSORS)
        imports[:0] = ["import functools", ""]
    combining: set[str] = set()
    fields: dict[str, str] = {}
    uses_libdevice = False
    overlapping: set[str] = set()
    functions: list[list[str]] = []
    kernels: list[EmittedKernel] = []
    writers = [_writer(launch) for launch in launches]
    languages = {"Triton" if each is KernelWriter else "Gluon" for each in writers}
    uses_gluon = any(issubclass(each, GluonKernelWriter) for each in writers)
    helpers = dict.fromkeys(api.FUNCTIONS if uses_gluon else ())
    for launch, make in zip(launches, writers):
        writer = make(launch, module_names)
        functions.append(writer.write())
        helpers.update(dict.fromkeys(writer.helpers))
        combining |= writer.expressions.combine_functions
        fields |= writer.expressions.field_functions
        uses_libdevice |= writer.expressions.uses_libdevice
        overlapping.update(line[: line.index("(")] for line in writer.overlapping)
        kernels.append(_description(launch, writer))
    functions.append(HostWriter(root, module_names).write(entry, into))
    functions[:0] = [combine_function(name).splitlines() for name in sorted(combining)]
    functions[:0] = [fields[name].splitlines() for name in sorted(fields)]
    functions += [text.splitlines() for text in supporting]
    if uses_gluon:
        imports += api.imports(any("warpgroup_mma_init(" in line for lines in functions for line in lines))
    if api.LOAD_AHEAD in helpers:
        imports += [each for each in api.RING_IMPORTS if each not in imports]
    if uses_gluon or RingWriter in writers:
        functions[:0] = [text.splitlines() for text in helpers]
    title = comment(f"{root.sym_name}: {' and '.join(sorted(languages))} source written by tiledsl.")
    head = [f"# {title}", "", *imports]
    if uses_libdevice:
        head.append("from triton.language.extra import libdevice")
    if overlapping:
        head.append(f"from triton.language.extra.cuda import {', '.join(sorted(overlapping))}")
    head += _descriptor_imports(described)
    blocks = ["\n".join(head), *("\n".join(lines) for lines in functions)]
    return EmittedModule("\n\n\n".join(blocks) + "\n", entry, into, tuple(kernels))


def _descriptor_imports(described: set[bool]) -> list[str]:
    """Where descriptors for Gluon (True) and for Triton (False) come from."""
    imports = {True: api.DESCRIPTOR_IMPORT, False: DESCRIPTOR_IMPORT}
    if len(described) < 2:
        return [imports[each] for each in described]
    return [f"{imports[True]} as GluonDescriptor", f"{imports[False]} as TritonDescriptor"]


def _description(launch: triton.LaunchOp, writer: KernelWriter) -> EmittedKernel:
    options: dict[str, Any] = dict(launch.options)
    signature: dict[str, str] = {}
    for value, outside in zip(launch.body.args, launch.arguments, strict=True):
        element = SIGNATURE_TYPES[value.dtype.lstrip("*")]
        if isinstance(outside.op, triton.DescriptorOp):
            block = in_fours(outside.op.block) if outside.op.in_fours else outside.op.block
            gluon_type = api.descriptor_type(block, value.dtype[1:]) if outside.op.swizzle else ""
            signature[writer.name(value)] = gluon_type or f"tensordesc<{element}{list(block)}>"
        else:
            signature[writer.name(value)] = "*" * value.dtype.startswith("*") + element
    extents = [constant_of(value) for value in launch.grid]
    return EmittedKernel(
        name=launch.sym_name,
        signature=signature,
        num_warps=options.pop("num_warps", 4),
        num_stages=options.pop("num_stages", 3),  # as a launch that does not say
        options={
            **{key: value for key, value in options.items() if key not in triton.OURS},
            "enable_fp_fusion": True,
            **debug_options(launch),
        },
        divisible_by_16=tuple(name for name, type in signature.items() if type.startswith("*")),
        grid=tuple(None if each is None else int(each) for each in extents),
    )
