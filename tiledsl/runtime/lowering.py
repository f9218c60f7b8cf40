"""Lowering a program to the parts of a Kernel: IR, source, and the stages in between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tiledsl.codegen.emitted import EmittedModule
from tiledsl.codegen.triton_source import emit
from tiledsl.dialects.tile import FuncOp, GemmOp, KernelOp, buffer_type
from tiledsl.dialects.triton import LaunchOp
from tiledsl.errors import TileError, meant
from tiledsl.formulas import names_in
from tiledsl.interchange.printer import print_generic
from tiledsl.ir.pass_manager import PASSES, Pass, PassManager, Program, Stage
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import ELEMENTS, BufferType, Type
from tiledsl.location import Loc
from tiledsl.passes import default_pipeline
from tiledsl.runtime.gc_pause import collection_paused
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target
from tiledsl.settings import current

Build = Callable[[], FuncOp]


@dataclass(frozen=True)
class Lowered:
    """What lowering a program gives.

    outputs: positions of parameters. places: the source location of each kernel of the module. remarks: requests that a
    pass could not fulfil, and why. stages: without texts.
    """

    name: str
    params: list[Parameter]
    outputs: tuple[int, ...]
    places: list[Loc | None]
    remarks: tuple[str, ...]
    module: EmittedModule
    stages: list[Stage]


@collection_paused()
def lower(build: Build, target: Target, pass_configs: Mapping[str, Any], resumed_after: str = "") -> Lowered:
    """Build a program, lower it for a target and emit its source. Raises TileError for mistakes in the program.

    resumed_after: the pass that what is built comes after; "" for one that no pass has seen.
    """
    settings = current()
    check_print_after(settings.print_after)
    start = time.perf_counter()
    root = build()
    elaborated = (time.perf_counter() - start) * 1e3
    name, outputs = root.sym_name, root.outputs
    params = [
        _parameter(root, position, parameter, arg.type)
        for position, (parameter, arg) in enumerate(zip(root.parameters, root.body.args, strict=False))
    ]
    _check_target(root, target)
    places: list[Loc | None] = [op.loc for op in root.nests() if isinstance(op, (KernelOp, LaunchOp))]
    dump = str(settings.dump_dir or "")
    how = {"print_after": settings.print_after, "dump_dir": dump, "verify_each": settings.verify_each}
    manager = _manager(build, target, pass_configs, resumed_after, **how)
    manager.run(Program(root, target))
    remarks = dict.fromkeys(text for op in root.body if isinstance(op, LaunchOp) for text in op.remarks)
    start = time.perf_counter()
    module = emit(root)
    _release(root)
    stages = [Stage("elaborate", "elaborate", elaborated), *manager.stages]
    stages.append(Stage("emit", "emit", (time.perf_counter() - start) * 1e3))
    if dump:
        Path(dump, f"{name}.py").write_text(module.source, encoding="utf-8")
    return Lowered(name, params, outputs, places, tuple(remarks), module, stages)


def _release(root: FuncOp) -> None:
    """Break the reference cycles of a program that is no longer needed, which frees its memory at once."""
    for op in root.walk():
        for region in op.regions:
            region.parent, region.args = None, []
        op.parent, op.operands, op.results = None, [], []


def with_texts(
    stages: Sequence[Stage],
    build: Build,
    target: Target,
    pass_configs: Mapping[str, Any],
    source: str,
    resumed_after: str = "",
) -> list[Stage]:
    """The stages with the IR's text after each, made by lowering again; the last one's is the source."""
    root = build()
    first = print_op(root)
    manager = _manager(build, target, pass_configs, resumed_after, keep_text=True)
    texts = [stage.text for stage in manager.run(Program(root, target))]
    return [
        Stage(stage.name, stage.spec, stage.milliseconds, text)
        for stage, text in zip(stages, [first, *texts, source], strict=True)
    ]


def located_texts(
    build: Build, target: Target, pass_configs: Mapping[str, Any], resumed_after: str = ""
) -> list[Stage]:
    """The stages of lowering a program again, from the elaborated one to the last pass, with texts whose lines end in
    source locations."""
    root = build()
    first = Stage("elaborate", "elaborate", 0.0, print_op(root, locations=True))
    manager = _manager(build, target, pass_configs, resumed_after, keep_text=True, locations=True)
    return [first, *manager.run(Program(root, target))]


def text_after(
    after: str,
    build: Build,
    target: Target,
    pass_configs: Mapping[str, Any],
    locations: bool,
    generic: bool,
    resumed_after: str = "",
) -> str:
    """The IR's text after the last run of a pass; as built if `after` is "", "elaborate" or "tile", and at the end of
    the pipeline if it is "triton".

    Raises TileError for a pass that the pipeline does not have.
    """
    root = build()
    if after and after not in ("elaborate", "tile"):
        stop = "" if after == "triton" else after
        _manager(build, target, pass_configs, resumed_after, stop_after=stop).run(Program(root, target))
    return (print_generic if generic else print_op)(root, locations=locations)


def check_print_after(name: str) -> None:
    """Raises TileError unless the setting print_after is '', 'all', 'changed' or a pass's name."""
    if name not in ("", "all", "changed", *PASSES):
        known = meant(name, ["all", "changed", *sorted(PASSES)], "it must be one of")
        raise TileError(f"the setting print_after is {name!r}; {known}")


def _manager(
    build: Build, target: Target, pass_configs: Mapping[str, Any], resumed_after: str, **options: Any
) -> PassManager:
    passes = rest_of(default_pipeline(pass_configs), resumed_after)
    return PassManager(passes, rebuild=lambda: Program(build(), target), **options)


def rest_of(passes: Sequence[Pass], after: str) -> Sequence[Pass]:
    """The passes behind the last run of a pass; all, behind "" and "elaborate". TileError if it is none of them."""
    if after in ("", "elaborate"):
        return passes
    names = [each.name for each in passes]
    if after not in names:
        raise TileError(f"the pipeline has no pass {after!r}; {meant(after, names, 'it has')}")
    return passes[len(names) - names[::-1].index(after) :]


def _is_used(root: FuncOp, position: int) -> bool:
    """Whether anything reads or writes a parameter, or a size comes from it that is not its own alone."""
    arg = root.body.args[position]
    sizes = [name for name, source in zip(root.symbols, root.symbol_sources) if _is_of(str(source), position, root)]
    others = [
        each.type
        for number, each in enumerate(root.body.args)
        if each is not arg and isinstance(each.type, BufferType) and (each.uses or number in root.outputs)
    ]
    needed = {name for type in others for name in (*type.shape, *(type.strides or ()))}
    needed |= {name for _, formula in root.formulas for name in names_in(formula)}
    return bool(arg.uses or position in root.outputs) or any(name in needed or root.symbol(name).uses for name in sizes)


def _is_of(source: str, position: int, root: FuncOp) -> bool:
    """Whether a size is read from a parameter, such as "A.0" from A."""
    return source.rpartition(".")[0] == str(root.parameters[position])


def _parameter(root: FuncOp, position: int, name: str, type: Type) -> Parameter:
    is_output = position in root.outputs
    if isinstance(type, BufferType):
        own = {each: formula for each, formula in dict(root.formulas).items() if each in type.shape}
        flags = _is_used(root, position), position in root.packed
        return Parameter(name, type.dtype, is_output, type.shape, type.strides, own, *flags)
    return Parameter(name, type.dtype, is_output)


def _check_target(root: FuncOp, target: Target) -> None:
    supported = target.dtypes
    for op in root.walk():
        for value in chain(op.results, *[region.args for region in op.regions]) if op.regions else op.results:
            if value.dtype.removeprefix("*") not in supported:  # of a pointer, what it points to
                what = f"{value.name or 'a value'} is {value.type.dtype}"
                raise TileError(f"{what}, which {target} does not have", op.loc, code="element-type")
        if type(op) is GemmOp:
            _check_shared(op, target)


def _check_shared(op: GemmOp, target: Target) -> None:
    """Raise TileError if a product's operands in shared memory do not fit there together, even with one stage."""
    tiles = dict.fromkeys(value for value in (op.a, op.b) if buffer_type(value).scope == "shared")
    sizes = {value: math.prod(buffer_type(value).static_shape) * ELEMENTS[value.dtype].bits // 8 for value in tiles}
    needed, available = sum(sizes.values()), target.max_shared_bytes
    if needed <= available:
        return
    notes: list[str | tuple[str, Loc]] = [
        (f"{value.name} is {buffer_type(value).shape} of {value.dtype}, {size} bytes, allocated", value.op.loc)
        for value, size in sizes.items()
        if value.op is not None
    ]
    raise TileError(
        f"T.gemm needs {needed} bytes of shared memory for its operands, and {target} has {available} for a block",
        op.loc,
        [*notes, "use smaller tiles"],
        code="shared-memory",
    )
