"""A compiled program: call it, look into every stage, export it."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.dialects.tile import FuncOp, GemmOp, KernelOp, buffer_type
from tiledsl.errors import TileError, user_loc
from tiledsl.ir.location import Loc
from tiledsl.ir.pass_manager import PassManager, Program, Stage
from tiledsl.ir.text import print_op
from tiledsl.ir.types import ELEMENTS, BufferType
from tiledsl.runtime.target import Target
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.codegen.triton_source import EmittedModule
    from tiledsl.runtime.compile import CompiledKernel
    from tiledsl.runtime.resources import Resources


class Parameter:
    """A parameter of a program: what a call must give for it. A dynamic dimension is a name."""

    def __init__(self, name: str, type: Any, is_output: bool) -> None:
        self.name = name
        self.dtype = type.dtype
        self.is_output = is_output
        self.is_tensor = isinstance(type, BufferType)
        self.shape: tuple[int | str, ...] = type.shape if self.is_tensor else ()
        self.strides: tuple[int | str, ...] | None = type.strides if self.is_tensor else None

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape) if self.is_tensor else ''}"


class Kernel:
    """A program lowered for a target.

    Called with its inputs it returns its outputs (a tensor, or several); called with all parameters it writes into the
    given outputs. Nothing but the lowering happens before the first call: Triton compiles then, or when `asm`,
    `resources` or `compiled` is asked for.
    """

    def __init__(
        self,
        build: Callable[[], FuncOp],
        target: Target,
        pass_configs: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        prim_func: Any = None,
    ) -> None:
        self._build = build
        self.target = target
        self.pass_configs = dict(pass_configs or {})
        self.config: dict[str, Any] | None = dict(config) if config is not None else None
        self.prim_func = prim_func
        self.latency: float | None = None  # milliseconds, set by the tuner
        self.ref_latency: float | None = None
        settings = current()
        start = time.perf_counter()
        root = build()
        self.name = root.sym_name
        elaborated = (time.perf_counter() - start) * 1e3
        self.params = [
            Parameter(name, arg.type, position in root.outputs)
            for position, (name, arg) in enumerate(zip(root.parameters, root.body.args, strict=False))
        ]
        self.outputs: tuple[int, ...] = root.outputs
        self._inputs = [p for p in self.params if not p.is_output]
        self._check_target(root)
        # One for each kernel of the module.
        self._places: list[Loc | None] = [op.loc for op in root.walk() if isinstance(op, KernelOp)]
        dump = str(settings.dump_dir or "")
        manager = self._manager(print_after=settings.print_after, dump_dir=dump, verify_each=settings.verify_each)
        manager.run(Program(root, target))
        from tiledsl.codegen.triton_source import emit

        start = time.perf_counter()
        self.module: EmittedModule = emit(root)
        self._stages = [Stage("elaborate", "elaborate", elaborated), *manager.stages]
        self._stages.append(Stage("emit", "emit", (time.perf_counter() - start) * 1e3))
        if dump:
            Path(dump, f"{self.name}.py").write_text(self.module.source, encoding="utf-8")

    def _manager(self, **options: Any) -> PassManager:
        from tiledsl.passes import default_pipeline

        rebuild = lambda: Program(self._build(), self.target)  # noqa: E731
        return PassManager(default_pipeline(self.pass_configs), rebuild=rebuild, **options)

    def _check_target(self, root: FuncOp) -> None:
        for op in root.walk():
            for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
                dtype = value.type.dtype
                if not self.target.supports(dtype):
                    raise TileError(f"{value.name or 'a value'} is {dtype}, which {self.target} does not have", op.loc)
            if isinstance(op, GemmOp):
                self._check_shared(op)

    def _check_shared(self, op: GemmOp) -> None:
        """A product's operands in shared memory lie there whole and at once, so they must fit. Stages come on top."""
        tiles = dict.fromkeys(value for value in (op.a, op.b) if buffer_type(value).scope == "shared")
        sizes = {value: math.prod(buffer_type(value).static_shape) * ELEMENTS[value.dtype].bits // 8 for value in tiles}
        needed, available = sum(sizes.values()), self.target.max_shared_bytes
        if needed > available:
            raise TileError(
                f"T.gemm needs {needed} bytes of shared memory for its operands, and {self.target} has {available} "
                "for a block",
                op.loc,
                [
                    *[
                        (
                            f"{value.name} is {buffer_type(value).shape} of {value.dtype}, {size} bytes, allocated",
                            value.op.loc,
                        )
                        for value, size in sizes.items()
                        if value.op is not None
                    ],
                    "use smaller tiles",
                ],
            )

    # Looking inside

    @property
    def source(self) -> str:
        """The Triton source: one module with the kernels and the function that launches them."""
        return self.module.source

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The Triton source."""
        return self.source

    def show_source(self) -> None:
        """Print the Triton source."""
        print(self.source)

    @cached_property
    def stages(self) -> list[Stage]:
        """Name, pass spec, milliseconds and IR text of each stage, from the elaborated program to the source."""
        root = self._build()
        first = print_op(root)
        texts = [stage.text for stage in self._manager(keep_text=True).run(Program(root, self.target))]
        return [
            Stage(stage.name, stage.spec, stage.milliseconds, text)
            for stage, text in zip(self._stages, [first, *texts, self.source], strict=True)
        ]

    def ir(self, after: str = "", *, locations: bool = False, generic: bool = False) -> str:
        """The IR after a pass (its last run, if it runs several times); as elaborated, if no pass is named.

        `generic` prints it in MLIR's generic form. Raises TileError for a pass that the pipeline does not have.
        """
        root = self._build()
        if after and after not in ("elaborate", "tile"):
            manager = self._manager()
            names = [each.name for each in manager.passes]
            if after not in names:
                raise TileError(f"the pipeline has no pass {after!r}; it has {', '.join(dict.fromkeys(names))}")
            manager.passes = manager.passes[: len(names) - names[::-1].index(after)]
            manager.run(Program(root, self.target))
        if generic:
            from tiledsl.ir.text import print_generic

            return print_generic(root)
        return print_op(root, locations=locations)

    def graph(self, after: str = "") -> Any:
        """The program after a pass (see `ir`) as a networkx graph: operations, and an edge for each use of a value.

        `tiledsl.graphs.to_dot` makes Graphviz text of it; `tiledsl.graphs.launch_graph` has the order of kernels.
        """
        from tiledsl.graphs import ssa_graph
        from tiledsl.ir.text import parse_op

        return ssa_graph(parse_op(self.ir(after, locations=True)))

    @cached_property
    def compiled(self) -> dict[str, CompiledKernel]:
        """The kernels compiled by Triton for the target, by name. Needs no GPU. Raises CompileError."""
        from tiledsl.runtime.compile import compile_kernel
        from tiledsl.runtime.module import load_module

        if self.target.kind == "interpret":
            raise TileError(
                "the target 'interpret' runs the source without compiling it, so there is no assembly",
                notes=["compile for a GPU, which needs none: tiledsl.compile(program, target='cuda:90')"],
            )
        loaded = load_module(self.name, self.source, interpret=False)
        compiled = {}
        for each, place in zip(self.module.kernels, self._places):
            try:
                compiled[each.name] = compile_kernel(
                    getattr(loaded, each.name), each.signature, each.constexprs, self.target, each.num_warps,
                    each.num_stages, attrs=each.divisible_by_16, **each.options,
                )  # fmt: skip
            except TileError as error:
                error.loc = error.loc or place
                raise
        return compiled

    @property
    def asm(self) -> Mapping[str, Any]:
        """ttir, ttgir, llir, ptx, sass (or amdgcn) of the kernel; of the first one, if there are several."""
        return next(iter(self.compiled.values())).asm

    @property
    def resources(self) -> Resources:
        """Shared memory, registers, spills and occupancy of the kernel; of the first one, if there are several."""
        return next(iter(self.compiled.values())).resources

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the source as a file that needs only torch and triton. An existing file is replaced in one step."""
        to = Path(path)
        with tempfile.NamedTemporaryFile(
            "w", dir=to.parent, prefix=f".{to.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(self.source)
        os.replace(file.name, to)
        return to

    # Running

    @cached_property
    def _loaded(self) -> Any:
        from tiledsl.runtime.module import load_module

        if not self.target.runs_here:
            raise TileError(
                f"{self.name} is compiled for {self.target}, which this machine cannot run",
                notes=["look at .source, .asm and .resources, or compile with target='interpret' to run it here"],
            )
        return load_module(self.name, self.source, interpret=self.target.kind == "interpret")

    @cached_property
    def _launch(self) -> Callable[..., Any]:
        return getattr(self._loaded, self.module.entry)  # type: ignore[no-any-return]

    @cached_property
    def _launch_into(self) -> Callable[..., Any]:
        return getattr(self._loaded, self.module.into)  # type: ignore[no-any-return]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program. See the class for arguments and results; raises TileError for tensors that do not fit."""
        if keywords:
            arguments = self._with_keywords(arguments, keywords)
        given = self.params if len(arguments) == len(self.params) else self._inputs
        if len(arguments) != len(given):
            expected = f"{len(self._inputs)} inputs" + (
                f" or all {len(self.params)} parameters" if self.outputs else ""
            )
            raise TileError(
                f"{self.name} takes {expected} ({', '.join(map(repr, self.params))}), not {len(arguments)}", user_loc()
            )
        try:
            self.check(given, arguments)
        except TileError as error:
            error.loc = error.loc or user_loc()
            raise
        if given is not self.params or not self.outputs:
            return self._launch(*arguments)
        self._launch_into(*arguments)
        results = [arguments[position] for position in self.outputs]
        return results[0] if len(results) == 1 else results

    def _with_keywords(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        rest = self._inputs[len(arguments) :]
        unknown = set(keywords) - {p.name for p in rest}
        if unknown:
            raise TileError(f"{self.name} has no further parameter {sorted(unknown)[0]!r}")
        missing = [p.name for p in rest if p.name not in keywords]
        if missing:
            raise TileError(f"{self.name} is called without {missing[0]}")
        return (*arguments, *(keywords[p.name] for p in rest))

    def check(self, params: Sequence[Parameter], arguments: Sequence[Any]) -> None:
        """Compare rank, shape, dtype, strides and device of tensors with what the program was compiled for."""
        import torch

        symbols: dict[str, tuple[int, str]] = {}
        device = None
        for param, given in zip(params, arguments, strict=True):
            if not param.is_tensor:
                if isinstance(given, torch.Tensor) or not isinstance(given, (int, float)):
                    raise TileError(f"{self.name}: {param.name} is a {param.dtype} scalar, not {type(given).__name__}")
                continue
            if not isinstance(given, torch.Tensor):
                raise TileError(f"{self.name}: {param.name} is a tensor, not {type(given).__name__}")
            if str(given.dtype) != f"torch.{param.dtype}":
                raise TileError(
                    f"{self.name}: {param.name} must be {param.dtype}, but the tensor is {str(given.dtype)[6:]}"
                )
            self._check_shape(param, given, symbols)
            if device is None:
                device = (given.device, param.name)
            elif given.device != device[0]:
                raise TileError(f"{self.name}: {param.name} is on {given.device}, but {device[1]} is on {device[0]}")
        if device is not None and self.target.kind != "interpret" and device[0].type == "cpu":
            raise TileError(
                f"{self.name}: {device[1]} is on the CPU, but the program is compiled for {self.target}",
                notes=["move the tensors with .cuda(), or compile with target='interpret'"],
            )

    def _check_shape(self, param: Parameter, given: Any, symbols: dict[str, tuple[int, str]]) -> None:
        shape = tuple(given.shape)
        if len(shape) != len(param.shape):
            raise TileError(
                f"{self.name}: {param.name} has shape {shape}, but {len(param.shape)} dimensions {param.shape} are "
                "declared"
            )
        for axis, (dim, size) in enumerate(zip(param.shape, shape, strict=True)):
            if size == 0:
                raise TileError(f"{self.name}: dimension {axis} of {param.name} is 0: its shape is {shape}")
            if isinstance(dim, str):
                known, where = symbols.setdefault(dim, (size, f"{param.name}.shape[{axis}]"))
                if known != size:
                    raise TileError(
                        f"{self.name}: {param.name}.shape[{axis}] is {size}, but {dim} is {known} by {where}"
                    )
            elif dim != size:
                raise TileError(f"{self.name}: {param.name} has shape {shape}, but it was compiled for {param.shape}")
        if param.strides is None:
            if not given.is_contiguous():
                raise TileError(
                    f"{self.name}: {param.name} has strides {tuple(given.stride())}, but must be contiguous",
                    notes=[f"pass {param.name}.contiguous(), or declare it with T.StridedTensor"],
                )
        else:
            for axis, (dim, stride) in enumerate(zip(param.strides, given.stride(), strict=True)):
                if dim != stride and isinstance(dim, int) and shape[axis] != 1:
                    raise TileError(f"{self.name}: {param.name} has stride {stride} in dimension {axis}, not {dim}")

    def get_profiler(self, tensor_supply_type: Any = "auto", **_: Any) -> Any:
        """A Profiler: do_bench, assert_allclose, run_once on inputs made from the parameters."""
        from tiledsl.runtime.profiler import Profiler
        from tiledsl.runtime.supply import ParamInfo

        infos = [ParamInfo(p.name, p.shape if p.is_tensor else None, p.dtype, p.is_output) for p in self.params]  # type: ignore[arg-type]
        device = "cpu" if self.target.kind == "interpret" else "cuda"
        return Profiler(self, infos, tensor_supply_type, device)

    def __repr__(self) -> str:
        return f"<tiledsl kernel {self.name}({', '.join(map(repr, self.params))}) for {self.target}>"
