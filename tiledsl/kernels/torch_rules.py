"""What torch is told of an operator: what it computes, its outputs' shapes, gradients, batches and autocast.

Each rule is registered with torch.library; there is no dispatcher here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiledsl.errors import TileError, user_loc
from tiledsl.kernels.lost_gradients import once_differentiable

_kept: list[Any] = []  # libraries, whose rules end with them
_AUTOCAST_DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_AUTOCAST_TYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Argument:
    """One of an operator. kind: its type in the schema. dtype: a tensor's element type, "" if it is not known."""

    name: str
    kind: str
    dtype: str = ""
    is_written: bool = False
    any_strides: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind.startswith("Tensor")

    def text(self, number: int) -> str:
        return f"{f'Tensor(a{number}!)' if self.is_written else self.kind} {self.name}"


@dataclass(frozen=True)
class Backward:
    """How gradients are found; see Kernel.register_backward."""

    function: Callable[..., Any]
    setup_context: Callable[..., None] | None
    is_kernel: bool
    leading: int = 0  # arguments before the kernel's, which have no gradients

    def after(self, count: int) -> Backward:
        """The same for an operator with arguments before the kernel's, which have no gradients."""
        if not count:
            return self
        saved = self.setup_context or save_inputs

        def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
            saved(ctx, inputs[count:], output)

        return replace(self, setup_context=setup_context, leading=count)

    def rule(self, ctx: Any, *gradients: Any) -> Any:
        """A gradient, or None, for each of the kernel's inputs."""
        if not self.is_kernel:
            found = self.function(ctx, *gradients)
            return tuple(found) if isinstance(found, (list, tuple)) else (found,)
        found = self.function(*ctx.saved_tensors, *gradients, *ctx.scalars)
        found = iter(found if isinstance(found, (list, tuple)) else (found,))
        return tuple(next(found, None) if is_tensor else None for is_tensor in ctx.are_tensors)


def save_inputs(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Keep the tensors among the inputs, then the outputs; the rest in `ctx.scalars`."""
    import torch

    outputs = output if isinstance(output, (list, tuple)) else (output,)
    ctx.are_tensors = tuple(each is None or isinstance(each, torch.Tensor) for each in inputs)
    ctx.save_for_backward(*(each for each, is_tensor in zip(inputs, ctx.are_tensors) if is_tensor), *outputs)
    ctx.scalars = tuple(each for each, is_tensor in zip(inputs, ctx.are_tensors) if not is_tensor)


@dataclass(frozen=True)
class Definition:
    """An operator: `run` computes, `fake` makes outputs of the right shapes for tensors without values."""

    arguments: tuple[Argument, ...]
    returns: int
    run: Callable[..., Any]
    fake: Callable[..., Any]
    backward: Backward | None = None
    vmap: Callable[..., Any] | None = None

    @property
    def schema(self) -> str:
        """Its types as torch writes them; what it writes is marked."""
        parts = ", ".join(each.text(number) for number, each in enumerate(self.arguments))
        returned = ["Tensor"] * self.returns
        return f"({parts}) -> {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}"


def argument_name(name: str) -> str:
    """A parameter's name as a schema may have it."""
    return f"{name}_" if name in ("self", "out", "from", "int", "float", "bool", "str") else name


def define(definition: Definition, name: str) -> Any:
    """Register an operator "namespace::name" with all its rules; the torch.ops overload."""
    import torch

    mutated = [each.name for each in definition.arguments if each.is_written]
    defined = torch.library.custom_op(name, definition.run, mutates_args=mutated, schema=definition.schema)
    defined.register_fake(definition.fake)
    if definition.backward is not None and definition.returns:
        backward, setup_context = autograd_rule(definition, definition.backward)
        defined.register_autograd(backward, setup_context=setup_context)
    namespace, _, short = name.partition("::")
    operator = getattr(getattr(torch.ops, namespace), short).default
    defined.register_vmap(definition.vmap or _each_of_a_batch(definition, operator))
    library = torch.library.Library(namespace, "FRAGMENT")
    _kept.append(library)
    for device, key in _AUTOCAST_DEVICES.items():
        library.impl(short, _autocast_rule(definition, operator, device), key)
    return operator


def autograd_rule(definition: Definition, how: Backward) -> tuple[Callable[..., Any], Callable[..., None]]:
    """torch.library's two functions: gradients from what was saved, and what is saved."""
    names = [each.name for each in definition.arguments[how.leading :]]

    def backward(ctx: Any, *gradients: Any) -> Any:
        input_gradients = how.rule(ctx, *(each if each is None else each.contiguous() for each in gradients))
        if len(input_gradients) != len(names):
            raise TileError(
                f"a backward returns {len(input_gradients)} gradients for {len(names)} inputs: {', '.join(names)}",
                user_loc(),
                ["return one for each, None for those that have none"],
            )
        return (None,) * how.leading + input_gradients

    return once_differentiable(backward), how.setup_context or save_inputs


def _each_of_a_batch(definition: Definition, call: Callable[..., Any]) -> Callable[..., Any]:
    """torch.vmap as a loop over the batch: the program knows nothing of a dimension more."""

    def rule(info: Any, in_dims: Sequence[int | None], *operands: Any) -> Any:
        import torch

        for argument, dim in zip(definition.arguments, in_dims):
            if argument.is_written and dim is None:
                raise TileError(
                    f"under vmap every call would write into the same {argument.name}",
                    notes=[f"give {argument.name} a batch dimension, too"],
                )
        if info.batch_size == 0:
            return _of_no_batch(definition, in_dims, operands)
        results = []
        for number in range(info.batch_size):
            parts = [each if dim is None else each.select(dim, number) for each, dim in zip(operands, in_dims)]
            dense = [
                part.contiguous() if dim is not None and not argument.any_strides else part
                for argument, part, dim in zip(definition.arguments, parts, in_dims)
            ]
            result = call(*dense)
            results.append(result if isinstance(result, (list, tuple)) else (result,))
            for argument, part, there in zip(definition.arguments, parts, dense):
                if argument.is_written and part is not there:
                    part.copy_(there)
        if definition.returns == 0:
            return None, None
        stacked = tuple(torch.stack(each) for each in zip(*results))
        return (stacked[0], 0) if definition.returns == 1 else (stacked, (0,) * definition.returns)

    return rule


def _of_no_batch(definition: Definition, in_dims: Sequence[int | None], given: Sequence[Any]) -> Any:
    """The result over a batch of 0: nothing runs, and each output has a dimension of 0 in front."""

    def one(each: Any, dim: int | None) -> Any:
        return each if dim is None else each.new_empty((*each.shape[:dim], *each.shape[dim + 1 :]))

    made = definition.fake(*map(one, given, in_dims))
    if definition.returns == 0:
        return None, None
    parts = made if isinstance(made, (list, tuple)) else (made,)
    results = tuple(each.new_empty((0, *each.shape)) for each in parts)
    return (results[0], 0) if definition.returns == 1 else (results, (0,) * definition.returns)


def _autocast_rule(definition: Definition, operator: Any, device: str) -> Callable[..., Any]:
    """Under torch.autocast, floats come as the program declares them. A tensor that is written stays what it is."""

    def rule(*given: Any) -> Any:
        import torch

        with torch.autocast(device, enabled=False):
            return operator(*(autocast(a, each) for a, each in zip(definition.arguments, given)))

    return rule


def autocast(argument: Argument, given: Any) -> Any:
    """An argument as autocast has it: a tensor of floats in the declared element type."""
    import torch

    if argument.is_written or argument.dtype not in _AUTOCAST_TYPES or not isinstance(given, torch.Tensor):
        return given
    return given.to(getattr(torch, argument.dtype)) if str(given.dtype)[6:] in _AUTOCAST_TYPES else given


def checked_backward(name: str, returns: bool, backward: Any, setup_context: Any, is_kernel: bool) -> Backward:
    """Raises TileError if gradients cannot be given to what has this name."""
    if not returns:
        raise TileError(
            f"{name} writes into tensors that it is given, for which torch keeps no gradients",
            notes=["compile it with out_idx, so that it returns its outputs"],
        )
    if not callable(backward):
        raise TileError(f"{name}: backward is a function or a kernel, not {type(backward).__name__}")
    return Backward(backward, setup_context, is_kernel)


def transformed(definition: Definition, operator: Any, operands: Sequence[Any]) -> Any:
    """A call with gradients under torch.func, which takes none of custom operators, but of such a function."""
    import torch

    assert definition.backward is not None
    rule, saved = autograd_rule(definition, definition.backward)

    class Differentiable(torch.autograd.Function):  # type: ignore[misc]
        """The operator with its rules."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            saved(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return rule(ctx, *gradients)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
            return _each_of_a_batch(definition, Differentiable.apply)(info, in_dims, *arguments)

    return Differentiable.apply(*operands)
