"""Kernels written in Triton or Gluon as functions that are tuned as ours are: see `@tiledsl.autotune`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tiledsl.codegen.emitted import EmittedKernel, EmittedModule
from tiledsl.codegen.host_descriptors import DESCRIPTOR, DESCRIPTOR_IMPORT
from tiledsl.errors import TileError, brief, user_loc
from tiledsl.kernels.calls import building, value_key
from tiledsl.kernels.jit import JitFunction, resolve_target
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.signatures import check_given, check_known
from tiledsl.kernels.triton_text import NotStandalone, is_jitted, literal, standalone
from tiledsl.launch_options import LAUNCH_OPTIONS, check_launch_option
from tiledsl.levels.build import unknown_option
from tiledsl.levels.specialise import specialise
from tiledsl.runtime.launch_stored import specialised
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target

_TF32 = 2.0**-11  # unit roundoff of operands of tl.dot, unless it says otherwise
_NARROW = ("float16", "fp16", "bf16", "float8", "fp8")
_MOST_KERNELS = 1024
_APART = "make it for each configuration in a function under @tiledsl.tune_function"


class TritonProgram(Kernel):
    """A kernel of Triton with one configuration, for arguments of given shapes and values.

    It is called with the tensors among its arguments; the others, the configuration and the grid are part of it. Its
    `source` stands alone: the kernel with what it refers to, and the function that launches it. There is no IR of tiles
    of it, and so no `ir`, `stages` and `verify`.
    """

    def __init__(self, function: TritonFunction, values: Mapping[str, Any], options: Mapping[str, Any], target: Target) -> None:  # fmt: skip # noqa: E501
        """values: each argument, constants included; options: those of the launch. TileError for what is no argument
        of a kernel, and for a grid that is none."""
        jitted = function.jitted
        self.name = self.__name__ = function.__name__
        self.target, self.pass_configs, self.config, self.prim_func = target, {}, None, None
        self.latency = self.ref_latency = None
        tensors = {name: value for name, value in values.items() if _is_tensor(value)}
        self.params = [
            Parameter(
                name,
                str(value.dtype).removeprefix("torch."),
                False,
                tuple(map(int, value.shape)),
                tuple(value.stride()),
            )
            for name, value in tensors.items()
        ]
        self.outputs: tuple[int, ...] = ()
        self._inputs, self._places, self.remarks, self._stages = self.params, [None], (), []
        self._work: tuple[Any, ...] = ()  # nothing is read from a program, see predicting.work
        grid, blocks = function.sizes(values, options), function.blocks(values)
        try:
            text = standalone(jitted)
        except NotStandalone as reason:
            raise TileError(
                f"{self.name} cannot be tuned as it is: {reason}",
                notes=[
                    "numbers, texts, element types and jitted functions will do; give others as tl.constexpr arguments"
                ],
            ) from None
        self.roundings = _TF32 if "dot" in text and '"ieee"' not in text else 0.0, any(n in text for n in _NARROW)
        self.overwrites = "atomic" not in text  # else what an output holds before is part of the result
        entry = _unused("launch", text)
        names = {name: name if name != jitted.fn.__name__ else f"{name}_" for name in tensors}
        arguments = [names.get(name) or _constant(self.name, name, values[name]) for name in jitted.arg_names]
        options = {"enable_fp_fusion": True, **options}  # the default, but Triton 3.9 wants it said
        arguments += [f"{name}={_constant(self.name, name, value)}" for name, value in options.items()]
        types, constants, divisible, _ = specialise(
            jitted, (), {**values, **{name: _type(each, blocks.get(name)) for name, each in tensors.items()}}
        )
        given = {"num_warps": 4, "num_stages": 2 if target.kind == "hip" else 3, **options}
        emitted = EmittedKernel(
            jitted.fn.__name__, types, given.pop("num_warps"), given.pop("num_stages"), given, constants,
            tuple(divisible), grid,
        )  # fmt: skip
        lines = [f"{jitted.fn.__name__}[{literal(grid)}]({', '.join(arguments)})"]
        for name, block in blocks.items():
            shape, strides = tuple(tensors[name].shape), tensors[name].stride()
            lines.insert(-1, f"{names[name]} = _descriptor({names[name]}, {shape}, {strides}, {block})")
        about = f'def {entry}({", ".join(names.values())}):\n    """Runs the kernel on these tensors."""\n'
        if names:
            lines = [f"with torch.cuda.device_of({next(iter(names.values()))}):", *(f"    {line}" for line in lines)]
        if blocks:
            text = f"{DESCRIPTOR_IMPORT}\n{text.rstrip()}\n\n\n{DESCRIPTOR}"
        launch = "".join(f"    {line}\n" for line in lines)
        self.module = EmittedModule(f"{text}\n\n{about}{launch}", entry, entry, (emitted,))
        self._build = self._no_program

    def from_level(self, level: str, source: Any, *, allow: Collection[str] = ()) -> Kernel:
        """See Kernel.from_level. Another text of the function is a remark: its constants are no part of its source, but
        arguments, which the file's record has."""
        given = [allow] if isinstance(allow, str) else [*allow]
        return super().from_level(level, source, allow=[*given, "source"])

    def _no_program(self) -> Any:
        raise TileError(
            f"{self.name} is a kernel of Triton: there is no IR of tiles",
            notes=["look at its .source, .asm and .resources; save_levels(folder) writes Triton's own levels"],
        )


class TritonFunction(JitFunction):
    """A function under @triton.jit or @gluon.jit with its grid, as a JitFunction whose kernels are TritonPrograms."""

    is_eager = True
    is_triton = True

    def __init__(
        self,
        jitted: Any,
        grid: Any,
        make_inputs: Callable[..., Any] | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        descriptors: Mapping[str, Sequence[int | str]] | None = None,
    ) -> None:
        """grid: one to three sizes, or a function of the arguments by name that returns them, as Triton takes it. None:
        `f[grid](...)` says it. jitted: may be under @triton.heuristics. make_inputs: makes the arguments that a call
        leaves out from those that it has. descriptors: arguments that are tensor descriptors, with the sizes of their
        blocks: numbers, or names of arguments. TileError for names that the function does not have."""
        self.make_inputs = make_inputs
        self.heuristics: list[tuple[str, Any]] = []
        while not is_jitted(jitted):  # as triton.heuristics leaves it
            self.heuristics += list(jitted.values.items())
            jitted = jitted.fn
        self.jitted, self.grid = jitted, grid
        self.descriptors = _checked_blocks(jitted, descriptors or {})
        own = {"grid": grid, "heuristics": [rule for _, rule in self.heuristics], "descriptors": self.descriptors}
        super().__init__(jitted.fn, {**options, **own}, {})

    def with_grid(self, grid: Any) -> TritonFunction:
        """The same function, launched with this grid."""
        found = TritonFunction(self.jitted, grid, self.make_inputs, self.options, self.descriptors)
        found.heuristics = self.heuristics
        return found

    def _bind(self, arguments: Sequence[Any], keywords: Mapping[str, Any], partial: bool = False) -> dict[str, Any]:
        bound = super()._bind(arguments, keywords, partial)
        further = "; num_warps and the like belong into configurations"
        check_known(self.__name__, self.signature, bound, further)
        for name, value in bound.items():
            bound[name] = _described(self.__name__, name, value, name in self.descriptors)
        if self.make_inputs is None or any(map(_is_tensor, bound.values())):
            return bound
        wanted = inspect.signature(self.make_inputs).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in wanted.values())
        made = self.make_inputs(**{name: value for name, value in bound.items() if takes_any or name in wanted})
        strange = [made] if not isinstance(made, Mapping) else [n for n in made if n not in self.signature.parameters]
        if strange:
            raise TileError(f"{self.__name__}: make_inputs gives {strange[0]!r}; it must return arguments by name")
        return {**{n: _described(self.__name__, n, v, n in self.descriptors) for n, v in made.items()}, **bound}

    def blocks(self, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The sizes of the blocks that the descriptors of a call with these values have. TileError for those that the
        hardware cannot copy."""
        blocks = {}
        for name, sizes in self.descriptors.items():
            tensor = values[name]
            block = tuple(_without_wrapper(values[size]) if isinstance(size, str) else size for size in sizes)
            if not _is_tensor(tensor) or len(tensor.shape) != len(block):
                shown = f"of {len(tensor.shape)} dimensions" if _is_tensor(tensor) else f"a {type(tensor).__name__}"
                raise TileError(f"{self.__name__}: {name} is {shown}; its descriptor has {len(block)}: {block}")
            for size, value in zip(sizes, block, strict=True):
                if type(value) is not int or value < 1:
                    raise TileError(f"{self.__name__}: {size} is {brief(value)}, no size of the blocks of {name}")
            strides, bytes = tensor.stride(), tensor.element_size()
            if strides[-1] != 1 or any(stride * bytes % 16 for stride in strides[:-1]):
                raise TileError(
                    f"{self.__name__}: {name} has strides {strides} and elements of {bytes} bytes; a descriptor needs "
                    "rows of neighbours that begin at multiples of 16 bytes",
                    notes=["pass a tensor with padded rows, or use pointers in the kernel"],
                )
            blocks[name] = block
        return blocks

    def sizes(self, values: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
        """The grid for a call."""
        if self.grid is None:
            raise TileError(
                f"{self.__name__} has no grid", user_loc(), ["pass grid=... to the decorator, or call f[grid](...)"]
            )
        grid = self.grid
        if callable(grid):
            try:
                grid = grid({**values, **options})
            except Exception as error:
                raise TileError(
                    f"{self.__name__}: grid raises {type(error).__name__}: {error}",
                    notes=[f"it is given the arguments by name: {', '.join([*values, *options])}"],
                ) from error
        sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if not 1 <= len(sizes) <= 3 or any(not hasattr(size, "__index__") or int(size) < 0 for size in sizes):
            raise TileError(f"{self.__name__}: grid is {grid!r}; it must be one to three sizes")
        return tuple(int(size) for size in sizes)

    def kernel_for(
        self, bound: Mapping[str, Any], config: Mapping[str, Any] | None = None, target: Target | None = None
    ) -> Kernel:
        """The kernel for a call's arguments and a configuration, made once."""
        where = target or resolve_target(self.options.get("target"))
        if config is not None and self._names_level(config):
            from tiledsl.levels.candidates import run_from

            plain = {name: value for name, value in config.items() if name != "from_level"}
            kernel = self.kernel_for(bound, {**self._of_level(config["from_level"], bound), **plain}, where)
            return run_from(kernel, config)  # type: ignore[no-any-return]
        given = {**bound, **(config or {})}
        options = {name: given.pop(name) for name in list(given) if name not in self.signature.parameters}
        self._check(given, options, where)
        for name, rule in self.heuristics:
            given[name] = rule({**given, **options})
        values = {name: _without_wrapper(given[name]) for name in self.signature.parameters}
        like = {n: (v.dtype, tuple(v.shape), v.stride()) if _is_tensor(v) else v for n, v in values.items()}
        key = (value_key(like), value_key(options), where)
        with building:
            if key not in self._kernels:
                if len(self._kernels) >= _MOST_KERNELS:
                    self._kernels = {}
                kernel = TritonProgram(self, values, options, where)
                kernel.config = dict(config) if config is not None else None
                self._kernels[key] = kernel
            return self._kernels[key]

    def _of_level(self, choice: Sequence[str], bound: Mapping[str, Any]) -> dict[str, Any]:
        """Constants and options with which a level's file was compiled, of those that a call does not give."""
        from tiledsl.levels.triton_kernel import triton_kernel

        artifact = triton_kernel(Path(choice[1]), choice[0]).artifact
        assert artifact is not None
        record = artifact.record
        constants = {
            each.name: each.value
            for each in record.arguments or ()
            if each.is_constant and each.name not in bound and not isinstance(each.value, (dict, list))
        }
        told = {name: record.options.get(name, record.metadata.get(name)) for name in ("num_warps", "num_stages")}
        return constants | {name: value for name, value in told.items() if value is not None}

    def compile(self, *arguments: Any, **keywords: Any) -> Kernel:
        """The kernel for these arguments, constants and options included."""
        return self.kernel_for(self._bind(arguments, keywords, partial=True))

    def _check(self, values: dict[str, Any], options: Mapping[str, Any], target: Target) -> None:
        """Raise TileError for what is missing or unknown; add defaults."""
        for name in ("pass_configs", "passes"):
            if name in options:
                raise TileError(f"{self.__name__} is a kernel of Triton: it takes no {name}")
        computed = [name for name, _ in self.heuristics]
        check_given(self.__name__, self.signature, {*values, *computed})
        for name, parameter in self.signature.parameters.items():
            if name not in computed:
                values.setdefault(name, parameter.default)
        for name in LAUNCH_OPTIONS:
            if options.get(name) is not None:
                check_launch_option(f"{self.__name__}: {name}", name, options[name])
        if target.kind == "interpret":
            if type(self.jitted).__name__ == "GluonJITFunction":
                raise TileError(
                    f"{self.__name__} is written in Gluon, which is compiled, not interpreted",
                    notes=["tune it where its GPU is"],
                )
            return
        unknown = unknown_option(options, target)
        if unknown:
            names = ", ".join(self.signature.parameters)
            raise TileError(f"{self.__name__} has no argument {unknown!r}, nor has Triton such an option for {target}; it has {names}")  # fmt: skip # noqa: E501


def _checked_blocks(jitted: Any, descriptors: Mapping[str, Sequence[int | str]]) -> dict[str, tuple[int | str, ...]]:
    """The sizes of blocks by argument. TileError for arguments and constants that a kernel does not have."""
    blocks = {}
    for name, sizes in descriptors.items():
        if isinstance(sizes, (str, int)):
            sizes = (sizes,)
        for wanted in (name, *(size for size in sizes if isinstance(size, str))):
            if wanted not in jitted.arg_names:
                raise TileError(
                    f"{jitted.fn.__name__} has no argument {wanted!r}, which descriptors names",
                    notes=[f"it has {', '.join(jitted.arg_names)}"],
                )
        blocks[name] = tuple(sizes)
    if blocks and type(jitted).__name__ == "GluonJITFunction":
        raise TileError(f"{jitted.fn.__name__} is written in Gluon, whose descriptors have layouts", notes=[_APART])
    return blocks


def is_triton(function: Any) -> bool:
    """Whether a function is under @triton.jit or @gluon.jit, and perhaps @triton.heuristics. TileError where
    @triton.autotune lies between."""
    while not is_jitted(function):
        if not type(function).__module__.startswith("triton.") or not hasattr(function, "fn"):
            return False
        if hasattr(function, "configs"):
            raise TileError(
                f"{function.fn.__name__} is under @triton.autotune: two would tune it",
                notes=["put tiledsl's in its place; triton.Config objects will do as configs"],
            )
        function = function.fn
    return True


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "shape") and hasattr(value, "dtype")


def _without_wrapper(value: Any) -> Any:
    return value.value if type(value).__name__ == "constexpr" and hasattr(value, "value") else value


def _type(tensor: Any, block: tuple[int, ...] | None) -> str:
    """Triton's type of a tensor that torch has allocated, which is aligned, or of its descriptor."""
    pointer = specialised(tensor, False)[0]
    return f"{pointer}:16" if block is None else f"tensordesc<{pointer[1:]}{list(block)}>"


def _described(kernel: str, name: str, value: Any, has_block: bool) -> Any:
    """The tensor of an argument that is one, or a descriptor of a whole one. TileError for other descriptors."""
    if not hasattr(value, "block_shape") or not hasattr(value, "base"):
        return value
    block = ", ".join(map(str, value.block_shape))
    way_out = f'say so beside the configurations: descriptors={{"{name}": ({block},)}}, with names of '
    if not has_block:
        raise TileError(
            f"{kernel}: {name} is a tensor descriptor with blocks of ({block})",
            user_loc(),
            [f"{way_out}constants for those that a configuration sets"],
        )
    base = value.base
    if hasattr(value, "layout") or getattr(value, "padding", "zero") != "zero":
        raise TileError(f"{kernel}: {name} is a descriptor with a layout or a padding of its own", user_loc(), [_APART])
    if (tuple(value.shape), tuple(value.strides)) != (tuple(base.shape), tuple(base.stride())):
        raise TileError(
            f"{kernel}: {name} describes {list(value.shape)} elements with strides {list(value.strides)} of a tensor "
            f"of {list(base.shape)} with strides {list(base.stride())}",
            user_loc(),
            ["pass the tensor itself, as a view of that shape: torch.as_strided"],
        )
    return base


def _constant(kernel: str, name: str, value: Any) -> str:
    """The text of an argument that is no tensor."""
    text = literal(value)
    if text is None:
        raise TileError(
            f"{kernel}: {name} is a {type(value).__name__}, which a kernel cannot be tuned with",
            notes=[
                "tensors, their descriptors, numbers, texts and element types can; what a function makes for a "
                "configuration belongs into a function under @tiledsl.tune_function"
            ],
        )
    return text


def _unused(name: str, text: str) -> str:
    while name in text:
        name += "_"
    return name
