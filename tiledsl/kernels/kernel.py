"""A compiled program: call it, inspect every stage, export it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError, ends_tracebacks, source_line, user_loc, way_out
from tiledsl.files import write_output
from tiledsl.kernels.function_op import call_operator
from tiledsl.kernels.lost_gradients import note_lost_gradients, refuse_gradients_of_torch_func, without_gradients
from tiledsl.kernels.other_names import OtherNames
from tiledsl.kernels.pass_choice import chosen_passes
from tiledsl.location import Loc
from tiledsl.report.notebook import Stages, code, folded, paragraph
from tiledsl.runtime.compile import compile_emitted, guard
from tiledsl.runtime.launch_checks import by_position, check
from tiledsl.runtime.launch_stored import CachedBinary, install
from tiledsl.runtime.module import load_module
from tiledsl.runtime.resources import spill_remark
from tiledsl.runtime.supply import ParamInfo
from tiledsl.runtime.target import Target

# The IR and the passes are loaded where they are needed: recalling a tuned kernel goes without.
if TYPE_CHECKING:
    from tiledsl.certificate import Certificate
    from tiledsl.codegen.emitted import EmittedModule
    from tiledsl.dialects.tile import FuncOp
    from tiledsl.kernels.torch_rules import Backward
    from tiledsl.levels.artifact import Artifact
    from tiledsl.levels.mlir_passes import TritonPass
    from tiledsl.runtime.compile import CompiledKernel
    from tiledsl.runtime.launch import Launcher
    from tiledsl.runtime.parameter import Parameter
    from tiledsl.runtime.resources import Resources

_making_callers = threading.Lock()
# Of a kernel's attributes, those that belong to what it has compiled and launched.
_OF_ONE_SOURCE = ("callers", "call_scope", "call_text", "operators", "loaded", "compiled", "stages", "kept", "_named")


class Kernel(OtherNames):
    """A program lowered for a target.

    Called with its inputs, it returns its outputs (a tensor, or several); called with all parameters, it writes into
    the given outputs. Before the first call the program is only lowered: Triton compiles at that call, or when `asm`,
    `resources` or `compiled` is read.
    """

    _resumed_after = ""
    origin: Kernel | None = None  # whose source this one's `artifacts` stand in for; see `from_level`
    artifacts: Mapping[str, Artifact] = {}
    certificate: Certificate | None = None  # of the last `verify`, or stored with what was tuned

    def __deepcopy__(self, memo: Any) -> Kernel:
        """Itself: what copies of a torch module share."""
        return self

    def __copy__(self) -> Kernel:
        return self

    def __init__(
        self,
        build: Callable[[], FuncOp],
        target: Target,
        pass_configs: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        prim_func: Any = None,
        resumed_after: str = "",
    ) -> None:
        """`resumed_after`: the pass that what is built comes after; see `resume`."""
        self._build = build
        self._resumed_after = resumed_after
        self.target = target
        self.pass_configs = chosen_passes(pass_configs)
        self.config: dict[str, Any] | None = dict(config) if config is not None else None
        self.prim_func = prim_func
        self.latency: float | None = None  # milliseconds, set by the tuner
        self.ref_latency: float | None = None
        from tiledsl.runtime.lowering import lower

        lowered = lower(build, target, self.pass_configs, resumed_after)
        self.name = lowered.name
        self.params = lowered.params
        self.outputs = lowered.outputs
        self._inputs = [p for p in self.params if not p.is_output]
        self._places = lowered.places
        self.remarks = lowered.remarks
        self.module = lowered.module
        self._stages = lowered.stages

    # Looking inside

    @property
    def source(self) -> str:
        """The Triton source: one module with the kernels and the function that launches them."""
        return self.module.source

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The Triton source."""
        return self.source

    @cached_property
    def stages(self) -> Stages:
        """Name, pass spec, milliseconds and IR text of each stage, from the elaborated program to the source."""
        from tiledsl.runtime.lowering import with_texts

        if self.origin is not None:
            return self.origin.stages
        texts = with_texts(self._stages, self._build, self.target, self.pass_configs, self.source, self._resumed_after)
        return Stages(texts)

    @ends_tracebacks
    def ir(self, after: str = "", *, locations: bool = False, generic: bool = False) -> str:
        """The IR after a pass (its last run, if it runs several times); without a name as elaborated, and for "triton"
        at the end of the pipeline.

        `generic` prints MLIR's generic form, `locations` adds source locations. Raises TileError if the pipeline has no
        such pass.
        """
        from tiledsl.runtime.lowering import text_after

        return text_after(after, self._build, self.target, self.pass_configs, locations, generic, self._resumed_after)

    def graph(self, after: str = "") -> Any:
        """The program after a pass (see `ir`) as a networkx graph: operations, and an edge for each use of a value.

        `tiledsl.graphs.to_dot` makes Graphviz text of it; `tiledsl.graphs.launch_graph` has the order of kernels.
        """
        from tiledsl.graphs import ssa_graph
        from tiledsl.ir.parser import parse_op

        return ssa_graph(parse_op(self.ir(after, locations=True)))

    @cached_property
    @ends_tracebacks
    def compiled(self) -> dict[str, CompiledKernel]:
        """The kernels as Triton compiled them for the target, by name. Needs no GPU. Raises CompileError."""

        if self.target.kind == "interpret":
            raise TileError(
                "the target 'interpret' runs the source without compiling it, so there is no assembly",
                notes=[
                    "compile for a GPU, which needs none: "
                    + way_out("tiledsl.compile(program, target='cuda:90')", "--target cuda:90")
                ],
            )
        loaded = load_module(self.name, self.source, interpret=False)
        compiled = {}
        places = chain(vars(self).get("_places", ()), repeat(None))  # a pass may have added kernels
        for each, place in zip(self.module.kernels, places):
            try:
                compiled[each.name] = compile_emitted(loaded, each, self.target)
            except TileError as error:
                error.loc = error.loc or self._located(place, error)
                raise
        return compiled

    def _located(self, place: Loc | None, error: TileError) -> Loc | None:
        """The place in the user's file that a line of the source comes from; the kernel's where none is known."""
        written = self.source.splitlines()[: getattr(error, "line", 0)]
        comments = (re.fullmatch(r"\s*# (.+):(\d+)", line) for line in reversed(written))
        origin = next((comment for comment in comments if comment), None)
        if place is None or origin is None or os.path.basename(place.file) != origin[1]:
            return place
        line = int(origin[2])
        text = source_line(place.file, line)
        return Loc(place.file, line, len(text) - len(text.lstrip()) + 1, line, len(text) + 1)

    @property
    @ends_tracebacks
    def asm(self) -> Mapping[str, Any]:
        """ttir, ttgir, llir, ptx, sass (or amdgcn) of the kernel; of the first kernel, if there are several."""
        return next(iter(self.compiled.values())).asm

    @property
    @ends_tracebacks
    def resources(self) -> Resources:
        """Shared memory, registers, spills and occupancy of the kernel; of the first kernel, if there are several."""
        for name, each in self.compiled.items():
            self.note_spills(name, each.resources.spills or 0)
        return next(iter(self.compiled.values())).resources

    def note_spills(self, name: str, spills: int) -> None:
        """Add a remark if a kernel spills more than a few bytes a thread."""
        remark = spill_remark(name, spills)
        if remark and remark not in self.remarks:
            self.remarks = (*self.remarks, remark)

    def triton_passes(self, name: str = "") -> list[TritonPass]:
        """Each of Triton's own MLIR passes over a GPU kernel, by default the first one: the module before and after it,
        and whether they differ. Needs no GPU; `tiledsl.levels.mlir_passes.save_passes` writes them to a folder.

        Raises TileError for the target "interpret".
        """
        from tiledsl.levels.mlir_passes import passes_of

        return passes_of(self, name)

    @ends_tracebacks
    def verify(self, seconds: float = 5.0) -> Certificate:
        """Prove and test what can be of this kernel, and say what is unknown and why; see docs/verify.md.

        Takes the lowering apart: that no access leaves its tensor, that neither blocks nor iterations of T.Parallel
        race, and that nothing is read before it is written. Runs nothing on a GPU. seconds: for all questions to the
        solver of each of these. The result stays in `certificate`, and `export` and `save_levels` write it too.
        """
        from tiledsl.certificate.certify import certify

        if self.origin is not None:
            raise TileError(
                f"{self.name} does not run from its source, so that nothing is known of it",
                notes=["verify the kernel from which it was made"],
            )
        self.certificate = certify(self, seconds)
        return self.certificate

    def save_certificate(self, folder: Path, name: str) -> list[Path]:
        """Write the certificate beside what is exported, if there is one and it is of this source."""
        if self.certificate is None or self.certificate.stale(self):
            return []
        return [self.certificate.save(folder / f"{name}.certificate.json")]

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the source to a file that needs only torch and triton. An existing file is replaced atomically.

        A certificate goes beside it, as <name>.certificate.json. Raises OSError if the path cannot be written.
        """
        if self.origin is not None:
            raise TileError(
                f"{self.name} does not run from its source", notes=["save_levels(folder) writes what it runs from"]
            )
        written = write_output(path, self.source.encode())
        if written.is_file():
            self.save_certificate(written.parent, written.stem)
        return written

    @ends_tracebacks
    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page of HTML about the kernel: what each pass changed beside the program's lines, resources, remarks,
        the certificate of the last `verify`. One file, which a browser shows without a network.

        The kernel is compiled for its resources, which needs no GPU. Raises TileError where `tiledsl[report]` is not
        installed, or the file cannot be written.
        """
        from tiledsl.kernels.report import kernel_page
        from tiledsl.report.page import write

        return write(kernel_page(self), path)

    @ends_tracebacks
    def save_levels(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write what Triton made of each GPU kernel, and return the paths: `<kernel>.ttir`, `.ttgir`, `.llir`, `.ptx`,
        `.cubin` (on AMD `.amdgcn`, `.hsaco`), and `<kernel>.json` with its arguments, launch metadata and hashes.

        Needs no GPU. Raises TileError for the target "interpret" and for a folder that cannot be written.
        """
        from tiledsl.levels.kernel import save_levels

        return save_levels(self, folder) + self.save_certificate(Path(folder), self.name)

    @ends_tracebacks
    def from_level(
        self,
        level: str,
        source: str | bytes | os.PathLike[str] | Mapping[str, Any],
        *,
        allow: Collection[str] = (),
    ) -> Kernel:
        """A kernel like this one whose GPU kernels are compiled from files of a level on; this one stays as it is.

        level: "ttir", "ttgir", "llir", "ptx", "cubin", "amdgcn" or "hsaco". source: a folder that `save_levels` wrote;
        for a program of one GPU kernel also a file or the text itself; or a dict of these by the kernels' names, which
        leaves the others as they are. The files may have been edited; `remarks` says which. A level that is of another
        program, configuration, GPU or version of Triton, or whose metadata is missing, is a TileError here; a call with
        arguments for which it was not compiled is one then. allow: which of the checks "source" and "triton_version" to
        turn into remarks.
        """
        from tiledsl.levels.kernel import artifacts_of, attaching

        origin = self.origin or self
        artifacts = {**self.artifacts, **artifacts_of(origin, level, source, allow)}
        kernel = origin.with_module(replace(origin.module, source=origin.source + attaching(artifacts)))
        kernel.origin, kernel.artifacts = origin, artifacts
        kernel.remarks = (*origin.remarks, *(text for each in artifacts.values() for text in each.remarks))
        kernel.latency = kernel.ref_latency = kernel.certificate = None
        return kernel

    def with_module(self, module: EmittedModule) -> Kernel:
        """A kernel like this one with another module, of which nothing is compiled or launched yet."""
        shared: type[Kernel] = next(each for each in type(self).__mro__ if "is_own" not in vars(each))
        kernel = shared.__new__(shared)
        kernel.__dict__.update({name: value for name, value in vars(self).items() if name not in _OF_ONE_SOURCE})
        kernel.module = module
        return kernel

    # Running

    @ends_tracebacks
    def check_runs_here(self) -> None:
        """Raises TileError where the target cannot run."""
        if not self.target.runs_here:
            raise TileError(
                f"{self.name} is compiled for {self.target}, which this machine cannot run",
                notes=["look at .source, .asm and .resources, or compile with target='interpret' to run it here"],
            )

    @cached_property
    def loaded(self) -> Any:
        """The source as a Python module. Raises TileError if the target cannot run here."""
        self.check_runs_here()
        loaded = load_module(self.name, self.source, interpret=self.target.kind == "interpret")
        if self.target.kind != "interpret":
            for emitted, place in zip(self.module.kernels, chain(vars(self).get("_places", ()), repeat(None))):
                guard(getattr(loaded, emitted.name), self.target, partial(self._located, place))
        for each in self.kept:
            install(getattr(loaded, each.name), each)
        return loaded

    # What another process kept of the jitted functions.
    kept: Sequence[CachedBinary] = ()

    # What runs a call, by its number of arguments; replaced, never changed. `call_scope` and `call_text` are of the
    # function that calls run: see launch.write_call.
    callers: Mapping[int, Launcher] = {}
    call_scope: dict[str, Any] = {}
    call_text = ""
    operators: Mapping[int, Any] = {}
    backward: Backward | None = None

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program; see the class for arguments and results. Raises TileError for tensors that do not match."""
        __tracebackhide__ = True  # from pytest: see tracebacks.py
        import torch

        if keywords:
            arguments = by_position(self.name, self._inputs, arguments, keywords)
        if torch.compiler.is_compiling():
            return self.in_graph(*arguments)
        if keywords:
            return self(*arguments)
        if not self.target.runs_here:  # what is wrong with a tensor says more
            try:
                self.check(self._given(len(arguments)), arguments)
            except TileError as error:
                error.loc = error.loc or user_loc()
                raise
        return self.caller(len(arguments)).find(*arguments)

    __call__ = call  # until calls are known: see launch.write_call

    @ends_tracebacks
    def bind(self, *arguments: Any, **keywords: Any) -> Callable[[], Any]:
        """A function without parameters that runs the program on these tensors, for hot loops.

        The tensors are checked here and kept alive; later calls use their memory and shapes as of now. Outputs and
        workspaces that are not given are allocated here, once: every call writes into the same ones and returns them,
        so use the function on one stream at a time. Nothing runs yet, but Triton compiles. Raises TileError for tensors
        that do not match.
        """
        if keywords:
            arguments = by_position(self.name, self._inputs, arguments, keywords)
        if len(arguments) != len(self.params):
            from tiledsl.kernels.torch_op import with_outputs

            self.check(self.caller(len(arguments)).params, arguments)
            arguments = with_outputs(self, arguments)
        return self.caller(len(arguments)).bound(arguments)

    @ends_tracebacks
    def caller(self, count: int) -> Launcher:
        """The object that runs calls with `count` arguments. Raises TileError if no call has that many."""
        if count not in self.callers:
            given = self._given(count)
            from tiledsl.runtime.launch import Launcher

            into = given is self.params
            function = self.module.into if into else self.module.entry
            with _making_callers:
                if count not in self.callers:
                    made = Launcher(self, given, function, self.outputs if into else ())
                    self.callers = {**self.callers, count: made}
        return self.callers[count]

    @property
    def input_count(self) -> int:
        """The arguments of a call that makes its outputs."""
        return len(self._inputs)

    def _given(self, count: int) -> list[Parameter]:
        """The parameters for which `count` arguments stand. Raises TileError if no call has that many."""
        given = self.params if count == len(self.params) else self._inputs
        if len(given) != count:
            every = f" or all {len(self.params)} parameters" if self.outputs else ""
            expected = f"{len(self._inputs)} inputs{every}"
            raise TileError(
                f"{self.name} takes {expected} ({', '.join(map(repr, self.params))}), not {count}", user_loc()
            )
        return given

    @property
    def launch_source(self) -> str:
        """The Python text that calls have run so far: guards for known signatures, and a launch plan for each."""
        signatures = [each for caller in self.callers.values() for each in caller.signatures.values()]
        return "\n\n".join([self.call_text, *(each.text for each in signatures)])

    # As an operator of torch

    def in_graph(self, *arguments: Any) -> Any:
        """A call through the kernel's torch operator, which is what tracers, modes and autograd of torch see."""
        import torch

        namespace, name, returned, as_list = self.operator_name(len(arguments))
        if torch.compiler.is_compiling():
            refuse_gradients_of_torch_func(self.name)
        if self.backward is None:
            arguments = tuple(without_gradients(self.name, arguments))
        return call_operator(namespace, name, arguments, returned, as_list, self.backward is not None)

    def operator_name(self, count: int) -> tuple[str, str, tuple[int, ...], bool]:
        """Namespace and name in torch.ops of the operator for calls with `count` arguments; made if necessary.

        Also the positions of the arguments that such a call returns, and whether it returns a list.
        """
        from tiledsl.kernels.torch_op import operator

        self.caller(count)
        namespace, _, name = operator(self, count).name().partition("::")
        returned = self.outputs if count == len(self.params) else ()
        as_list = len(self.outputs) > 1 and (bool(returned) or self.program_root().returns_list)
        return namespace, name.partition(".")[0], returned, as_list

    def note_lost_gradients(self) -> None:
        """See lost_gradients."""
        note_lost_gradients(self.name)

    # As torch.compiler.assume_constant_result does, which loads the whole tracer.
    operator_name._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def as_torch_op(self, name: str = "", backward: Any = None, setup_context: Any = None) -> Any:
        """The kernel as an operator of torch, which calls of the kernel use from now on when torch traces them.

        name: "namespace::name"; by default it is derived from the kernel's name and a digest of its source. Calls under
        torch.compile and torch.export create the operator by themselves; use this function to give it a name. backward,
        setup_context: see register_backward. Returns the torch.ops overload: a function of the inputs that returns the
        outputs or, for a program without out_idx, of all parameters, of which the written ones are marked as mutable.
        """
        from tiledsl.kernels.torch_op import operator

        if backward is not None:
            self.register_backward(backward, setup_context)
        return operator(self, len(self._inputs), name)

    def register_backward(self, backward: Any, setup_context: Any = None) -> None:
        """Give the kernel gradients: calls with tensors that require them become part of the autograd graph.

        backward: a function `(ctx, *gradients of the outputs)` that returns a gradient, or None, for each input; or a
        kernel, which is called with the tensor inputs, the outputs, the outputs' gradients and the scalar inputs, and
        returns the gradients of the tensor inputs in order. setup_context: `(ctx, inputs, output)`, as in
        torch.library; by default `ctx.saved_tensors` holds the tensor inputs followed by the outputs, and `ctx.scalars`
        the rest. Gradients are made contiguous. Raises TileError for kernels that do not return their outputs
        (out_idx).
        """
        from tiledsl.kernels.torch_rules import checked_backward

        is_kernel = isinstance(backward, Kernel)
        self.set_backward(checked_backward(self.name, bool(self.outputs), backward, setup_context, is_kernel))

    def set_backward(self, backward: Backward) -> None:
        """Have torch find gradients so."""
        self.backward, self.operators = backward, {}
        for caller in self.callers.values():
            caller.forget()

    def program_root(self) -> FuncOp:
        """The program, elaborated again."""
        return self._build()

    @ends_tracebacks
    def check(self, params: Sequence[Parameter], arguments: Sequence[Any]) -> None:
        """Compare rank, shape, dtype, strides and device of tensors with what the program was compiled for."""
        check(self.name, self.target, params, arguments)

    def get_profiler(self, tensor_supply_type: Any = "auto", **_: Any) -> Any:
        """A Profiler: do_bench, assert_allclose, run_once on inputs made from the parameters."""
        from tiledsl.runtime.profiler import Profiler

        infos = [ParamInfo(p.name, p.shape if p.is_tensor else None, p.dtype, p.is_output) for p in self.params]  # type: ignore[arg-type]
        device = "cpu" if self.target.kind == "interpret" else "cuda"
        return Profiler(self, infos, tensor_supply_type, device)

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        """Call the kernel (or `func`) once, on inputs made from the parameters; what it returned."""
        return self.get_profiler().run_once(func)

    def __repr__(self) -> str:
        return f"<tiledsl kernel {self.name}({', '.join(map(repr, self.params))}) for {self.target}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: name, parameters and target, remarks, and the source when it is opened."""
        remarks = "".join(map(paragraph, vars(self).get("remarks", ())))
        return paragraph(repr(self)) + remarks + folded("Triton source", code(self.source))
