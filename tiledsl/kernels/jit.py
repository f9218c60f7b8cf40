"""`@tiledsl.jit` and `tiledsl.compile`: from functions to kernels, each specialisation compiled once."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypedDict, overload

from tiledsl.errors import TileError, brief, ends_tracebacks, user_loc
from tiledsl.kernels.calls import MOST_CALLS, building, call_key, target_setting, value_key
from tiledsl.kernels.function_op import InGraphs
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.pass_choice import chosen_passes
from tiledsl.kernels.signatures import not_given, takes_any
from tiledsl.kernels.stored import pickled as pickled  # so that kernels pickle
from tiledsl.launch_options import LAUNCH_OPTIONS, check_launch_option
from tiledsl.runtime.launch_triton import belongs_to_torch, traced_as
from tiledsl.runtime.python_source import definition
from tiledsl.runtime.target import Target
from tiledsl.settings import current

# The language, the front end and the IR are loaded where they are needed: recalling a tuned kernel goes without.
if TYPE_CHECKING:
    from tiledsl.dialects.tile import FuncOp
    from tiledsl.frontend.elaborate import Arguments
    from tiledsl.runtime.launch import Launcher


def resolve_target(target: Any) -> Target:
    """The target of a call: the one given, else the setting's."""
    return Target.parse(current().target if target is None else target)


def _indices(out_idx: Any) -> tuple[int, ...]:
    if out_idx is None:
        return ()
    if isinstance(out_idx, bool) or not isinstance(out_idx, (int, list, tuple)):
        raise TileError(f"out_idx is {out_idx!r}; it must be a position or a list of positions")
    return (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)


def _is_prim_func(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return False
    from tiledsl.frontend.program import PrimFunc

    return isinstance(value, PrimFunc)


def no_program(name: str, returned: str) -> TileError:
    """The error of a builder that returns something else than a program."""
    way_out = "return the function under @T.prim_func; in the eager style write `with T.Kernel` in the function itself"
    return TileError(f"{name} returns {returned}, not a program", notes=[way_out])


def _is_program(value: Any) -> bool:
    """Whether it is under @T.prim_func, or a parsed text."""
    return not isinstance(value, FunctionType) and hasattr(value, "build")


@ends_tracebacks
def compile(
    func: Any,
    out_idx: int | Sequence[int] | None = None,
    target: Any = None,
    pass_configs: Mapping[str, Any] | None = None,
    *,
    passes: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    execution_backend: str | None = None,
    target_host: Any = None,
    verbose: bool | None = None,
    compile_flags: Any = None,
) -> Kernel:
    """Lower a @T.prim_func (or a parsed text program) for a target.

    out_idx: positions of the parameters that each call allocates and returns; negative ones count from the end. target:
    "cuda", "cuda:90", "hip:gfx942", "interpret" or "auto" (the default: the GPU if there is one, else interpret).
    pass_configs: {"pass-name.option": value}. passes: passes of your own and where they run, {"after:pass-name":
    [MyPass()]} or {"before:pass-name": ...}; see docs/passes.md. The remaining keywords are accepted for compatibility
    and ignored. Raises TileError for mistakes in the program.
    """
    if isinstance(func, (JitFunction,)):
        raise TileError(f"{func.__name__} is already under @tiledsl.jit; call it, or use {func.__name__}.compile(...)")
    if not _is_program(func):
        raise TileError(f"tiledsl.compile takes a @T.prim_func or a parsed program, not {type(func).__name__}")
    indices = _indices(out_idx)
    return Kernel(
        lambda: func.build(indices), resolve_target(target), chosen_passes(pass_configs, passes), config, func
    )


class JitFunction(InGraphs):
    """A function under @tiledsl.jit.

    Lazy style: called with the builder's arguments, it returns a Kernel. Eager style: called with tensors and tunables,
    it compiles for their shapes and runs; `compile` gives the Kernel.
    """

    __name__: str
    __qualname__: str
    is_triton = False  # a kernel of Triton's, see triton_function

    def __init__(self, function: FunctionType, options: Mapping[str, Any], frame_locals: Mapping[str, Any]) -> None:
        if not callable(function):
            raise TileError(
                f"@tiledsl.jit stands before a function, not {type(function).__name__} {function!r}", user_loc()
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.options = dict(options)
        self.frame_locals = frame_locals
        self.signature = inspect.signature(function)
        self._kernels: dict[Any, Kernel] = {}
        self._operators = {}
        self._known: dict[Any, Any] = {}  # what serves a call, by call_key
        self._last: tuple[Launcher, Any] | None = None  # of a call with nothing but tensors, and the target
        self._last_program: tuple[Any, FuncOp] | None = None
        self._dynamic: dict[Any, dict[str, tuple[frozenset[int], frozenset[int] | None]]] = {}

    def __repr__(self) -> str:
        return f"<tiledsl.jit function {self.__name__}({', '.join(self.signature.parameters)})>"

    @functools.cached_property
    def is_eager(self) -> bool:
        """Whether the function is itself a tile program, not a builder of one.

        Python's own parser tells: to load that of the language takes a hundred times as long, and a kernel that was
        tuned before does not need it.
        """
        function = inspect.unwrap(self.function)
        tree = definition(getattr(function, "__func__", function))
        if tree is None:  # a builder may have no text
            if _names_kernel(function):
                from tiledsl.frontend.parser import parse_function

                parse_function(function)  # which says what is wrong
            return False
        return _opens_kernel(tree.body) or _declares_parameters(tree)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # from pytest: see tracebacks.py
        target = self.options.get("target")
        last = self._last
        if last is not None and not keywords:
            first, count = last[0].first, len(last[0].names)
            like_last = first is not None and len(arguments) == count and first[0](*arguments)
            if like_last and last[1] == (target_setting() if target is None else target):
                return last[0].kernel(*arguments)
        key = None if keywords else call_key(target, arguments)
        known = self._known.get(key)
        if key is None or known is None:
            return self._call_anew(key, arguments, keywords)
        if self.is_eager:
            run, self._last = known
            return run(*arguments)
        return known

    traced_as(__call__, InGraphs.traced_call)

    @property
    def jit(self) -> JitFunction:  # type: ignore[override]
        """Itself."""
        return self

    @functools.cached_property
    def kernel_names(self) -> list[str]:
        """The parameters of an eager function that are those of its kernels; none for a builder."""
        if self.is_triton:
            raise TileError(
                f"{self.__name__} is a kernel of Triton's, which torch does not see in graphs",
                user_loc(),
                ["put the call into a torch.library.custom_op, which says what it writes"],
            )
        if not self.is_eager:
            return []
        from tiledsl.frontend.elaborate import declared_parameters

        return declared_parameters(self.function)

    def default_of(self, name: str) -> Any:
        """The default of a parameter; None if it has none."""
        parameter = self.signature.parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def kernel_in_graph(self, values: Mapping[str, Any], on_miss: str = "first") -> Kernel:
        """The kernel for a call's values by name."""
        return self.with_gradients(self.kernel_for(self._bind((), values)))

    def sample_kernel(
        self, values: Mapping[str, Any], dynamic: Sequence[str] | None, target: Target | None = None
    ) -> Kernel:
        """A kernel for such values whose sizes are dynamic; see InGraphs."""
        if dynamic is None or not self.is_eager:
            from tiledsl.language.program import dynamic as symbol

            sizes = {name: symbol(name) for name in dynamic or ()}
            return self.kernel_for(self._bind((), {**values, **sizes}, True), None, target)
        bound = dict(values)
        pass_configs, names = self._pass_configs(bound), self.signature.parameters
        given = {name: None if name in self.kernel_names else self.default_of(name) for name in names}
        build = self._builder({**given, **bound}, dynamic=True)
        return Kernel(build, target or resolve_target(self.options.get("target")), pass_configs)

    @ends_tracebacks
    def _call_anew(self, key: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """A call whose kernel is to be found by its arguments' names. It is remembered if `key` tells its like."""
        if belongs_to_torch((*arguments, *keywords.values())):
            return self.traced_call(*arguments, **keywords)
        kernel, wanted = self._kernel_and_arguments(arguments, keywords)
        if len(self._known) >= MOST_CALLS:
            self._known = {}
        if not self.is_eager:
            if key is not None:
                self._known[key] = kernel
            return kernel
        result = kernel(*wanted)
        if key is not None and len(wanted) <= len(arguments) and all(a is b for a, b in zip(wanted, arguments)):
            count = len(wanted)
            first = lambda *given: kernel(*given[:count])  # noqa: E731  # what follows are tunables
            if count < len(arguments) or kernel.caller(count).scalars:
                self._known[key] = first, None
            else:
                self._known[key] = kernel, (kernel.caller(count), key[0])
        return result

    def _kernel_and_arguments(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[Kernel, Sequence[Any]]:
        if not self.is_eager:
            return self.with_gradients(self.compile(*arguments, **keywords)), ()
        call_options = {key: keywords.pop(key) for key in ("__tune_params",) if key in keywords}
        bound = self._bind(arguments, keywords)
        kernel = self.with_gradients(self._eager_kernel(bound, call_options.get("__tune_params")))
        return kernel, [bound[p.name] for p in kernel.params if not p.is_output]

    @ends_tracebacks
    def compile(self, *arguments: Any, **keywords: Any) -> Kernel:
        """The kernel for these arguments. In the eager style, T.const values given by name may replace tensors."""
        if self.is_eager:
            return self._eager_kernel(self._bind(arguments, keywords, partial=True))
        bound = self._bind(arguments, keywords)
        return self.kernel_for(bound)

    def kernel_for(
        self, bound: Mapping[str, Any], config: Mapping[str, Any] | None = None, target: Target | None = None
    ) -> Kernel:
        """The kernel for bound arguments and a configuration, built once, for `target` or the decorator's target."""
        if config is not None and self._names_level(config):
            from tiledsl.levels.candidates import run_from

            plain = {name: value for name, value in config.items() if name != "from_level"}
            return run_from(self.kernel_for(bound, plain, target), config)  # type: ignore[no-any-return]
        if self.is_eager:
            return self._eager_kernel({**bound, **(config or {})}, config, target)
        values = {**bound, **(config or {})}
        pass_configs = self._pass_configs(values)
        target = target or resolve_target(self.options.get("target"))
        key = (value_key(values), value_key(pass_configs), target)
        with building:
            if key not in self._kernels:
                program = self.build(values)
                options = {**self.options, "pass_configs": pass_configs, "target": target}
                kernel = compile(program, **options)
                kernel.config = dict(config) if config is not None else None
                self._kernels[key] = kernel
            return self._kernels[key]

    def program_for(
        self, bound: Mapping[str, Any], config: Mapping[str, Any] | None = None
    ) -> tuple[FuncOp, dict[str, Any]]:
        """The elaborated, not yet lowered program of a configuration, and its pass_configs.

        Read it, do not change it: the next call returns it again if only pass_configs or launch options differ.
        """
        given = {**bound, **(config or {})}
        if self._names_level(given):
            del given["from_level"]
        values = {name: _argument(value) if self.is_eager else value for name, value in given.items()}
        pass_configs = self._pass_configs(values)
        key = value_key(values)
        last = self._last_program
        if last is None or last[0] != key:
            last = self._last_program = (key, self._elaborate(values))
        return last[1], pass_configs

    def _elaborate(self, values: Mapping[str, Any]) -> FuncOp:
        if self.is_eager:
            return self._builder(values)()
        program, outputs = self.build(values), _indices(self.options.get("out_idx"))
        return program.build(outputs)  # type: ignore[no-any-return]

    def _pass_configs(self, values: dict[str, Any]) -> dict[str, Any]:
        """The decorator's, and what `values` (of which it is taken out) says: pass_configs and launch options such as
        num_warps that are no parameters of the function."""
        passes = None if "passes" in self.signature.parameters else values.pop("passes", None)
        given = chosen_passes(values.pop("pass_configs", None), passes)
        chosen = {**chosen_passes(self.options.get("pass_configs")), **given}
        for name in LAUNCH_OPTIONS:
            if name in values and self.takes_launch_option(name):
                given = values.pop(name)
                if given is None:
                    continue
                check_launch_option(f"{self.__name__}: {name}", name, given)
                chosen[f"lower-to-triton.{name}"] = int(given)
        return chosen

    def _names_level(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration says which files to run from: the function has no parameter of that name."""
        return "from_level" in config and "from_level" not in self.signature.parameters

    def takes_launch_option(self, name: str) -> bool:
        """Whether a configuration's value of this name is a launch's: the function has no parameter for it."""
        return name not in self.signature.parameters and not takes_any(self.signature)

    def build(self, values: Mapping[str, Any]) -> Any:
        """Run the builder. Raises TileError if it does not return a program."""
        bound = self.signature.bind_partial()
        bound.arguments.update(values)
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                others = {name: value for name, value in values.items() if name not in self.signature.parameters}
                bound.arguments[parameter.name] = others
        tensors = [name for name, value in values.items() if hasattr(value, "data_ptr")]
        try:
            program = self.function(*bound.args, **bound.kwargs)
            if tensors and _is_program(program):
                program.build(())  # types of parameters may be evaluated as late as this
        except Exception as error:
            if not tensors:
                raise
            raise self._takes_sizes(tensors, values) from error
        if not _is_program(program):
            raise no_program(self.__name__, type(program).__name__)
        return program

    def _takes_sizes(self, tensors: Sequence[str], values: Mapping[str, Any]) -> TileError:
        """The error of a builder that tensors were given, and fails."""
        given = ", ".join(f"{name} is {brief(values[name])}" for name in tensors)
        call = f"{self.__name__}({', '.join(f'{name}=...' for name in tensors)})(...)"
        notes = [f"give it sizes and tunables, and its kernel the tensors: {call}"]
        return TileError(
            f"{self.__name__} makes a kernel and takes no tensors: {given}", user_loc(), notes, code="two-styles"
        )

    def _bind(self, arguments: Sequence[Any], keywords: Mapping[str, Any], partial: bool = False) -> dict[str, Any]:
        """Arguments by name, defaults included, and what the function takes by ** beside them. `partial`: further names
        are values of T.const symbols."""
        own = {name: value for name, value in keywords.items() if name in self.signature.parameters}
        extra = {name: value for name, value in keywords.items() if name not in self.signature.parameters}
        try:
            if partial:
                bound = self.signature.bind_partial(*arguments, **own)
            else:
                bound = self.signature.bind(*arguments, **(own if takes_any(self.signature) else keywords))
        except TypeError as error:
            given = any(hasattr(value, "data_ptr") for value in (*arguments, *keywords.values()))
            way_out = f"it makes a kernel of sizes and tunables; give tensors to the kernel: {self.__name__}(...)(...)"
            notes = [way_out] if given and not self.is_eager else []
            raise TileError(f"{self.__name__}: {error}", user_loc(), notes) from None
        bound.apply_defaults()
        return {**bound.arguments, **extra}

    def _eager_kernel(
        self, bound: Mapping[str, Any], config: Mapping[str, Any] | None = None, target: Target | None = None
    ) -> Kernel:
        from tiledsl.frontend.elaborate import Arguments
        from tiledsl.frontend.parser import parse_function

        if self.options.get("out_idx") is not None:
            raise TileError(
                f"{self.__name__}: out_idx belongs to the lazy style",
                parse_function(self.function).loc,
                ["this function has T.Kernel itself: what T.empty makes and it returns are its outputs"],
                code="two-styles",
            )
        values = {name: _argument(value) for name, value in bound.items()}
        pass_configs = self._pass_configs(values)
        host = value_key([{n: v for n, v in values.items() if not isinstance(v, Arguments)}, pass_configs])
        target = target or resolve_target(self.options.get("target"))
        tensors = {name: value for name, value in values.items() if isinstance(value, Arguments)}

        def key() -> Any:
            dynamic = self._dynamic.get(host, {})
            return host, target, tuple(_shape_key(name, value, dynamic) for name, value in tensors.items())

        with building:
            if key() not in self._kernels or tensors and host not in self._dynamic:
                kernel = Kernel(self._builder(values), target, pass_configs, config)
                self._dynamic[host] = {
                    p.name: (_names(p.shape), None if p.strides is None else _names(p.strides)) for p in kernel.params
                }
                self._kernels[key()] = kernel
            return self._kernels[key()]

    def _builder(self, values: Mapping[str, Any], dynamic: bool = False) -> Callable[[], FuncOp]:
        """What elaborates the program for these values; tensors that are missing are None."""
        from tiledsl.frontend.elaborate import elaborate_eager

        arguments = {**dict.fromkeys(not_given(self.signature, values)), **values}
        return lambda: elaborate_eager(self.function, arguments, self.frame_locals, dynamic)

    @ends_tracebacks
    def get_tir(self, *arguments: Any, **keywords: Any) -> Any:
        """The program for these arguments (the name is TileLang's); it has params, buffer_map and script()."""
        values = self._bind(arguments, keywords, partial=True)
        self._pass_configs(values)
        if not self.is_eager:
            return self.build(values)
        from tiledsl.frontend.program import EagerProgram

        return EagerProgram(self.__name__, self._builder({name: _argument(value) for name, value in values.items()}))


def _names(dims: Sequence[Any]) -> frozenset[int]:
    """The axes whose size is known only at a call."""
    return frozenset(axis for axis, dim in enumerate(dims) if isinstance(dim, str))


def _shape_key(name: str, value: Arguments, dynamic: Mapping[str, tuple[frozenset[int], frozenset[int] | None]]) -> Any:
    """What a compiled program depends on: sizes, and strides where they are declared, but those that are dynamic."""
    sizes, strides = dynamic.get(name, (frozenset(), None))
    shape = tuple(None if axis in sizes else size for axis, size in enumerate(value.shape))
    if strides is None or value.strides is None:
        return name, value.dtype, shape
    return name, value.dtype, shape, tuple(None if axis in strides else size for axis, size in enumerate(value.strides))


def _argument(value: Any) -> Any:
    from tiledsl.frontend.elaborate import Arguments

    if hasattr(value, "stride") and hasattr(value, "shape") and hasattr(value, "dtype"):
        return Arguments(tuple(value.shape), str(value.dtype).removeprefix("torch."), value.stride())
    from tiledsl.language.buffer import TensorSpec

    if isinstance(value, TensorSpec) and all(isinstance(dim, int) for dim in value.shape):
        return Arguments(value.shape, str(value.dtype), value.strides)
    return value


def _names_kernel(function: FunctionType) -> bool:
    """Whether the function itself, not one inside it, uses something that is named like T.Kernel."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and any(name.endswith("Kernel") for name in (*code.co_names, *code.co_freevars))


def _opens_kernel(statements: Sequence[ast.stmt]) -> bool:
    """Whether a `with ...Kernel(...)` stands in the function itself, under host control flow at most."""
    for statement in statements:
        if isinstance(statement, ast.With):
            call = statement.items[0].context_expr
            if _last_name(call.func if isinstance(call, ast.Call) else call).endswith("Kernel"):
                return True
        inner = [*statement.body, *statement.orelse] if isinstance(statement, (ast.If, ast.For, ast.While)) else []
        if _opens_kernel(inner):
            return True
    return False


def _declares_parameters(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a parameter's type is T.Tensor(...), by its annotation or a statement: the kernels may be in macros."""
    parameters = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    types = [each.annotation for each in parameters if isinstance(each.annotation, (ast.Call, ast.Subscript))]
    makers = (_last_name(each.func if isinstance(each, ast.Call) else each.value) for each in types)
    names = {parameter.arg for parameter in parameters}
    return any(maker in ("Tensor", "StridedTensor") for maker in makers) or any(
        isinstance(each, ast.AnnAssign) and each.value is None and getattr(each.target, "id", "") in names
        for each in tree.body
    )


def _last_name(node: ast.expr) -> str:
    """What stands behind the last point of a name."""
    return node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))


if TYPE_CHECKING:
    from typing_extensions import Unpack

    class _JitOptions(TypedDict, total=False):
        out_idx: int | Sequence[int] | None
        target: Any
        pass_configs: Mapping[str, Any] | None
        passes: Mapping[str, Any] | None
        execution_backend: str | None
        target_host: Any
        verbose: bool | None
        debug_root_path: str | None
        compile_flags: Any
        mode: str | None


@overload  # for type checkers
def jit(func: None = None, **options: Unpack[_JitOptions]) -> Callable[[Callable[..., Any]], JitFunction]: ...


@overload  # for type checkers
def jit(func: Callable[..., Any], **options: Unpack[_JitOptions]) -> JitFunction: ...


def jit(
    func: Any = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: Any = None,
    pass_configs: Mapping[str, Any] | None = None,
    passes: Mapping[str, Any] | None = None,
    execution_backend: str | None = None,
    target_host: Any = None,
    verbose: bool | None = None,
    debug_root_path: str | None = None,
    compile_flags: Any = None,
    mode: str | None = None,
) -> Any:
    """Decorator for builders of programs (lazy style) and for programs (eager style); see JitFunction and compile."""
    if passes is not None:
        pass_configs = chosen_passes(pass_configs, passes)
    options = {"out_idx": out_idx, "target": target, "pass_configs": pass_configs}
    locals_ = dict(sys._getframe(1).f_locals)

    def decorate(func: Any) -> Any:
        return compile(func, **options) if _is_prim_func(func) else JitFunction(func, options, locals_)

    return decorate if func is None else decorate(func)
