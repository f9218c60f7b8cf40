"""Functions under @tiledsl.jit and @tiledsl.autotune as operators of torch, with the search for a kernel inside.

A graph that calls a function has one node for it: the node finds the kernel for its tensors' sizes each time it runs,
so that graphs with dynamic sizes are traced once. Output shapes come from a program whose sizes are all dynamic; where
the function has no such program, sizes are constants of the graph.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.digests import digest
from tiledsl.errors import TileError, user_loc
from tiledsl.kernels.calls import MOST_CALLS, target_setting, tuner_settings, value_key
from tiledsl.kernels.lost_gradients import refuse_gradients_of_torch_func, without_gradients
from tiledsl.kernels.signatures import check_known, not_given
from tiledsl.runtime.launch_checks import refuse_tangents
from tiledsl.runtime.launch_triton import constant_when_traced, is_symbolic, is_transformed

if TYPE_CHECKING:
    from tiledsl.kernels.jit import JitFunction
    from tiledsl.kernels.kernel import Kernel
    from tiledsl.kernels.torch_rules import Backward

Named = tuple[tuple[str, Any], ...]


class InGraphs:
    """What functions that have kernels are in graphs of torch."""

    jit: JitFunction
    backward: Backward | None = None
    _operators: dict[Any, FunctionOperator]

    @property
    def on_miss_in_graphs(self) -> str:
        """What a call in a graph does that nothing was tuned for."""
        return "first"

    def __reduce__(self) -> str:
        """By name, as functions are pickled."""
        return self.jit.__qualname__

    def kernel_in_graph(self, values: Mapping[str, Any], on_miss: str) -> Kernel:
        """The kernel for a call's values by name. Nothing is tuned, unless on_miss is "tune"."""
        raise NotImplementedError

    def sample_kernel(self, values: Mapping[str, Any], dynamic: Sequence[str] | None) -> Kernel:
        """A kernel whose parameters and output shapes are those of all kernels for such values.

        dynamic: the builder's parameters that are dynamic; of an eager function, all sizes are; None: nothing is, and
        `values` has Arguments in place of tensors. Raises whatever the program or its configurations raise.
        """
        raise NotImplementedError

    def as_torch_op(
        self,
        name: str,
        backward: Any = None,
        setup_context: Any = None,
        *,
        vmap: Callable[..., Any] | None = None,
        on_miss: str | None = None,
        example_inputs: Sequence[Any] | None = None,
        **constants: Any,
    ) -> Any:
        """The function as an operator of torch, which takes the kernel's inputs and finds the kernel for them when it
        runs; the torch.ops overload.

        name: "namespace::name". backward, setup_context: see register_backward. vmap: a rule for torch.vmap as in
        torch.library.register_vmap; by default a loop over the batch. on_miss: what a tuned function does with sizes
        that nothing was tuned for: it runs the "first" configuration and says so once, raises an "error", or does
        "tune"; by default the first of these, unless the decorator says "error". constants: the function's other
        arguments, which are the same in every call; sizes of a builder are read from the tensors. example_inputs:
        tensors, for a program whose sizes cannot be dynamic; the operator's output shapes hold for the sizes of these
        alone. Raises TileError for a name that is taken, and for a function that needs more constants, or
        example_inputs.
        """
        if backward is not None:
            self.register_backward(backward, setup_context)
        if on_miss not in (None, "first", "error", "tune"):
            raise TileError(f"{self.jit.__name__}: on_miss is 'first', 'error' or 'tune', not {on_miss!r}", user_loc())
        made = _named_operator(self, constants, example_inputs)
        made.vmap, made.on_miss = vmap, on_miss or made.on_miss
        made.define(name)
        key = _operator_key(tuple(constants.items()), (), None, None)
        self._operators[key if self.jit.is_eager else name] = made
        return made.overload

    def register_backward(self, backward: Any, setup_context: Any = None) -> None:
        """Give the function gradients, with those of all its kernels; see Kernel.register_backward.

        backward may also be another eager function, which is called with the tensor inputs, the outputs, the outputs'
        gradients and the scalar inputs. Kernels that were made before stay without.
        """
        from tiledsl.kernels.torch_rules import checked_backward

        is_kernel = not hasattr(backward, "__code__") and hasattr(backward, "compile")
        self.backward = checked_backward(self.jit.__name__, True, backward, setup_context, is_kernel)
        self._operators = {}

    def size_names(self, constants: Mapping[str, Any]) -> tuple[str, ...]:
        """The parameters of a builder that stand for sizes: those that neither constants nor defaults give."""
        return tuple(not_given(self.jit.signature, constants))

    def forget_found(self) -> None:
        """Have operators look for kernels anew: there may be better ones."""
        for each in self._operators.values():
            each.known = {}

    def with_gradients(self, kernel: Kernel) -> Kernel:
        """The kernel, with the function's gradients, if it has any."""
        if self.backward is not None and kernel.backward is None and kernel.outputs:
            kernel.set_backward(self.backward)
        return kernel

    # What torch's tracer sees

    def traced_call(self, *arguments: Any, **keywords: Any) -> Any:
        """A call in a graph: that of an operator; for a builder, a function that calls one."""
        import torch

        bound = dict(zip(self._parameter_names(), arguments)) | keywords
        of_kernel = self._kernel_names()
        host = [name for name, value in bound.items() if name not in of_kernel and not isinstance(value, torch.Tensor)]
        symbolic = [name for name in host if is_symbolic(bound[name])]
        plain = tuple([(name, bound[name]) for name in host if name not in symbolic])
        fixed = plain + tuple([(name, operator.index(bound[name])) for name in symbolic]) if of_kernel else ()
        if of_kernel:
            operation = self._operator_in_graph(fixed, (), None, None)
            if operation is None:
                tensors = [name for name, value in bound.items() if isinstance(value, torch.Tensor)]
                like = tuple([(name, _described(bound[name])) for name in tensors])
                operation = self._operator_in_graph(fixed, (), None, like)
            return run_found(operation, [bound.get(name, other) for name, other in operation[3]])
        values = [bound[name] for name in symbolic]
        if symbolic and self._operator_in_graph(plain, tuple(symbolic), None, None) is None:
            plain = plain + tuple([(name, operator.index(bound[name])) for name in symbolic])
            symbolic, values = [], []

        def call(*inputs: Any, **named: Any) -> Any:
            count = len(inputs) + len(named)
            operation = self._operator_in_graph(plain, tuple(symbolic), count, None if symbolic else ())
            rest = [named[name] for name, _ in operation[3][len(inputs) :]]
            return run_found(operation, [*values, *inputs, *rest], len(values))

        return call

    @constant_when_traced
    def _parameter_names(self) -> tuple[str, ...]:
        return tuple(self.jit.signature.parameters)

    @constant_when_traced
    def _kernel_names(self) -> tuple[str, ...]:
        """The parameters of an eager function that are those of its kernels; none for a builder."""
        return tuple(self.jit.kernel_names)

    @constant_when_traced
    def _operator_in_graph(
        self, constants: Named, sizes: tuple[str, ...], count: int | None, like: Named | None
    ) -> Any:
        """Namespace and name of an operator, whether it returns a list, its arguments' names and defaults, which of the
        arguments it returns, whether it has gradients, and the function's name. See `operator_for`."""
        operator = operator_for(self, constants, sizes, count, like)
        if operator is None:
            return None
        sample, count = operator.sample, operator.count
        namespace, _, name = operator.overload.name().partition("::")
        returned = sample.outputs if count == len(sample.params) else ()
        as_list = len(sample.outputs) > 1 and (bool(returned) or sample.program_root().returns_list)
        defaults = tuple((each.name, self.jit.default_of(each.name)) for each in operator.params)
        has_gradients = self.backward is not None
        return namespace, name.partition(".")[0], as_list, defaults, tuple(returned), has_gradients, self.jit.__name__


def _described(tensor: Any) -> Any:
    """A tensor's dtype, shape and strides, as constants of the graph."""
    sizes = [operator.index(each) for each in tensor.shape]
    return tensor.dtype, tuple(sizes), tuple([operator.index(each) for each in tensor.stride()])


def run_found(found: Any, arguments: Sequence[Any], leading: int = 0) -> Any:
    """Call what `_operator_in_graph` found. leading: arguments that are not the kernel's."""
    import torch

    namespace, name, as_list, _, returned, is_differentiable, shown = found
    if torch.compiler.is_compiling():
        refuse_gradients_of_torch_func(shown)
    else:
        refuse_tangents(shown, arguments)
    if not is_differentiable:
        arguments = without_gradients(shown, arguments)
    returned = [leading + position for position in returned]
    return call_operator(namespace, name, arguments, returned, as_list, is_differentiable)


def call_operator(
    namespace: str, name: str, arguments: Sequence[Any], returned: Sequence[int], as_list: bool, is_differentiable: bool
) -> Any:
    """Call an operator of torch. returned: which of the arguments such a call returns, if it does not make outputs."""
    import torch

    if is_differentiable and not torch.compiler.is_compiling() and is_transformed():
        result = transformed_call(f"{namespace}::{name}", arguments)
        return list(result) if as_list else result
    result = getattr(getattr(torch.ops, namespace), name)(*arguments)
    if returned:
        result = [arguments[position] for position in returned]
        return result if as_list else result[0]
    return list(result) if as_list else result


def transformed_call(name: str, arguments: Sequence[Any]) -> Any:
    """A call of an operator with gradients under torch.func."""
    from tiledsl.kernels import torch_op
    from tiledsl.kernels.torch_rules import transformed

    return transformed(torch_op.definitions[name], torch_op.operators[name], arguments)


class FunctionOperator:
    """An operator of torch that runs a function for some constants. Its arguments are `sizes`, which a builder takes,
    and those of the kernel."""

    vmap: Callable[..., Any] | None = None

    def __init__(
        self,
        source: InGraphs,
        constants: Mapping[str, Any],
        sizes: Sequence[str],
        sample: Kernel,
        count: int,
        places: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """count: the kernel's arguments, as in Kernel.caller. places: for each size the tensor and the axis where it is
        read; then sizes are no arguments."""
        self.source, self.constants, self.sizes, self.sample, self.count = source, dict(constants), sizes, sample, count
        self.places, self.on_miss = places, source.on_miss_in_graphs
        self.params = sample.caller(count).params
        self.overload: Any = None
        self.known: dict[Any, Kernel] = {}

    def define(self, name: str = "") -> FunctionOperator:
        """Register it with torch."""
        from tiledsl.kernels import torch_op
        from tiledsl.kernels.torch_rules import Argument, Definition

        leading = [Argument(f"size_{each}", "SymInt") for each in self.sizes if self.places is None]
        arguments = (*leading, *torch_op.arguments_of(self.sample, self.count))
        backward = None if self.source.backward is None else self.source.backward.after(len(leading))
        definition = Definition(arguments, self._returns, self.run, self.fake, backward, self.vmap)
        self.overload = torch_op.define_named(self.source.jit.__name__, definition, name or self._default_name())
        return self

    @property
    def _returns(self) -> int:
        return 0 if self.count == len(self.sample.params) else len(self.sample.outputs)

    def _default_name(self) -> str:
        from tiledsl.kernels import torch_op

        sample, given = self.sample, (repr(self.constants), str(self.sizes), str(self.count))
        parts = (type(self.source).__name__, sample.source, repr(sample.params), str(sample.target), *given)
        name = f"tiledsl::{self.source.jit.__name__}_{digest(chr(10).join(parts))[:12]}"
        # As for kernels: what has gradients, or closes over something else, is another operator.
        is_other = self.source.backward is not None or name in torch_op.operators
        return f"{name}_{os.urandom(6).hex()}" if is_other else name

    def _split(self, arguments: Sequence[Any]) -> tuple[tuple[int, ...], Sequence[Any]]:
        """The builder's sizes and the kernel's arguments."""
        if self.places is None:
            return tuple(arguments[: len(self.sizes)]), arguments[len(self.sizes) :]
        return tuple(arguments[number].shape[axis] for number, axis in self.places), arguments

    def run(self, *arguments: Any) -> Any:
        """Find the kernel and run it."""
        sizes, given = self._split(arguments)
        result = self._kernel(sizes, given).caller(self.count).run(*given)
        if not self._returns:
            return None
        return tuple(result) if isinstance(result, (list, tuple)) else result

    def _kernel(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> Kernel:
        tensors = [(each.dtype, each.shape, each.stride()) for each in arguments if hasattr(each, "stride")]
        key = (target_setting(), tuner_settings(), sizes, *tensors)
        kernel = self.known.get(key)
        if kernel is None:
            values = {**self.constants, **dict(zip(self.sizes, sizes))}
            if self.source.jit.is_eager:
                values |= {param.name: value for param, value in zip(self.params, arguments)}
            kernel = self.source.kernel_in_graph(values, self.on_miss)
            if len(self.known) >= MOST_CALLS:
                self.known = {}
            self.known[key] = kernel
        return kernel

    def fake(self, *arguments: Any) -> Any:
        """Outputs for tensors without values."""
        from tiledsl.kernels.torch_op import outputs_for

        _, given = self._split(arguments)
        self.sample.check(self.params, given)
        if not self._returns:
            return None
        made = outputs_for(self.sample, given)
        return made[0] if len(made) == 1 else made


def _operator_key(constants: Named, sizes: tuple[str, ...], count: int | None, like: Named | None) -> Any:
    like_key = None if like is None else value_key(dict(like))
    return target_setting(), value_key(dict(sorted(constants))), sizes, count, like_key


def operator_for(
    source: InGraphs, constants: Named, sizes: tuple[str, ...], count: int | None, like: Named | None
) -> FunctionOperator | None:
    """The operator of calls with these constants, made once; None where no program has dynamic sizes.

    count: the kernel's arguments; None: its inputs. like: the call's tensors, described, for an operator of calls with
    such alone; None: its sizes are dynamic.
    """
    from tiledsl.kernels.torch_op import lock

    key = _operator_key(constants, sizes, count, like)
    with lock:
        if key in source._operators:
            return source._operators[key]
        try:
            sample = source.sample_kernel(dict(constants) | _tensors(like), None if like is not None else sizes)
            operator = FunctionOperator(source, dict(constants), sizes, sample, count or sample.input_count)
            same = _operator_key(constants, sizes, operator.count, like)
        except Exception:
            if like is None:
                return None  # asked again with all sizes, for which what is wrong is said
            raise
        if same not in source._operators:
            source._operators[same] = operator.define()
        source._operators[key] = source._operators[same]
        return source._operators[key]


def _tensors(like: Named | None) -> dict[str, Any]:
    from tiledsl.frontend.elaborate import Arguments

    return {
        n: Arguments(shape, str(dtype).removeprefix("torch."), strides) for n, (dtype, shape, strides) in like or ()
    }


def _named_operator(source: InGraphs, constants: Mapping[str, Any], examples: Sequence[Any] | None) -> FunctionOperator:
    """What as_torch_op makes, not yet registered."""
    jit = source.jit
    check_known(jit.__name__, jit.signature, constants)
    if jit.is_eager and examples is not None:
        names = [name for name in jit.kernel_names if name in jit.signature.parameters]
        like = tuple((name, _described(each)) for name, each in zip(names, examples) if hasattr(each, "stride"))
        sample = source.sample_kernel({**constants, **_tensors(like)}, None)
        return FunctionOperator(source, constants, (), sample, sample.input_count)
    sizes = () if jit.is_eager else source.size_names(constants)
    try:
        sample = source.sample_kernel(constants, sizes if sizes or jit.is_eager else None)
        count = sample.input_count
        operator = FunctionOperator(source, constants, sizes, sample, count, ())
    except Exception as error:
        way = "example_inputs=(...)" if jit.is_eager else ", ".join(f"{name}=..." for name in sizes)
        shown = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TileError(
            f"{jit.__name__} has no program whose sizes are dynamic: {shown}",
            user_loc(),
            [f"give the operator its sizes: {jit.__name__}.as_torch_op(name, {way})"],
        ) from error
    read = {dim: (number, axis) for number, param in enumerate(operator.params) for axis, dim in enumerate(param.shape)}
    for name in sizes:
        if name not in read:
            raise TileError(
                f"{jit.__name__}: {name} is not the size of a dimension of an input",
                user_loc(),
                [f"give it: {jit.__name__}.as_torch_op(name, {name}=...)"],
            )
    operator.places = [read[name] for name in sizes]
    return operator
