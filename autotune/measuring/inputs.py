"""The tensors that configurations are run on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.measuring.wire import with_strides
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.autotuner.options import TuneOptions
    from tiledsl.kernels.kernel import Kernel

_SEED = 0  # every run of a key sees the same values, so that a verdict can be repeated
_given: ContextVar[tuple[Any, ...] | None] = ContextVar("tiledsl_autotune_inputs", default=None)


@contextmanager
def set_autotune_inputs(*tensors: Any) -> Iterator[None]:
    """Tune on these inputs inside the `with` block, in this thread or task. One list of tensors will do as well."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    token = _given.set(tuple(tensors))
    try:
        yield
    finally:
        _given.reset(token)


def given_inputs() -> tuple[Any, ...] | None:
    """What the enclosing set_autotune_inputs gives, or None."""
    return _given.get()


def kernel_inputs(kernel: Kernel, options: TuneOptions, call_inputs: dict[str, Any] | None) -> list[Any]:
    """Inputs for a kernel: those of set_autotune_inputs, else of an eager call, else supply_prog's, else random."""
    params = [param for param in kernel.params if not param.is_output]
    device = "cpu" if kernel.target.kind == "interpret" else "cuda"
    given = given_inputs()
    if given is not None:
        inputs, source = list(given), "set_autotune_inputs"
    elif call_inputs is not None and all(call_inputs.get(param.name) is not None for param in params):
        inputs, source = [call_inputs[param.name] for param in params], "the call"
    elif options.supply_prog is not None:
        try:
            from tiledsl.autotuner.verifying.named import named  # not where a result is recalled

            with named("supply_prog"):
                supplied = options.supply_prog(params)
        except TileError as error:
            error.notes.append(f"it is given the parameters that are inputs: {', '.join(map(repr, params))}")
            raise
        inputs = list(supplied) if isinstance(supplied, (list, tuple)) else [supplied]
        source = "supply_prog"
    else:
        unknown = [param for param in params if not param.is_tensor or any(isinstance(n, str) for n in param.shape)]
        if unknown:
            raise TileError(
                f"autotune: {kernel.name} takes {unknown[0]!r}, of which only a call knows the "
                + ("size" if unknown[0].is_tensor else "value"),
                notes=["pass supply_prog=..., a function of the parameters that returns the inputs, or tune inside "
                       "`with set_autotune_inputs(...)`"],
            )  # fmt: skip
        profiler = kernel.get_profiler(options.supply_type)
        profiler.seed = _SEED
        return list(profiler.get_inputs())
    if len(inputs) != len(params):
        names = ", ".join(map(repr, params))
        raise TileError(f"autotune: {source} gives {len(inputs)} inputs; {kernel.name} takes {len(params)} ({names})")
    inputs = [item.to(device) if hasattr(item, "data_ptr") and item.device.type != device else item for item in inputs]
    try:
        kernel.check(params, inputs)
    except TileError as error:
        error.notes.append(f"{source} gives it")
        raise
    return inputs


def are_drawn(kernel: Kernel, options: TuneOptions, call_inputs: dict[str, Any] | None) -> bool:
    """Whether make_inputs draws the inputs at random, so that others would do as well."""
    wanted = [param for param in kernel.params if not param.is_output]
    of_call = call_inputs is not None and all(call_inputs.get(param.name) is not None for param in wanted)
    return given_inputs() is None and not of_call and options.supply_prog is None


def copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs again, tensors cloned with their strides (unless elements share memory)."""
    return [_copy(item) if hasattr(item, "data_ptr") else item for item in inputs]


def _copy(tensor: Any) -> Any:
    return with_strides(tensor.clone(), tensor.stride())


def nbytes(inputs: Sequence[Any]) -> int:
    """Bytes of the tensors' elements."""
    return sum(item.numel() * item.element_size() for item in inputs if hasattr(item, "data_ptr"))


def stand_ins(inputs: Sequence[Any]) -> list[Any]:
    """The inputs without their elements, to check a kernel's parameters against."""
    import torch

    return [
        torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")
        if hasattr(item, "data_ptr")
        else item
        for item in inputs
    ]


def changed(now: Any, old: Any) -> bool:
    """Whether a tensor's values differ from those of its copy; NaN equals NaN."""
    import torch

    if not isinstance(now, torch.Tensor):
        return False
    if now.dtype.is_floating_point and now.dtype.itemsize == 1:  # eight-bit floats compare as bits
        now, old = now.view(torch.uint8), old.view(torch.uint8)
    same = now == old
    if now.dtype.is_floating_point or now.dtype.is_complex:
        same |= now.isnan() & old.isnan()
    return not bool(same.all())


def poison(tensor: Any) -> None:
    """Fill a tensor with NaN, or with a number that no kernel is likely to write."""
    import torch

    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        # fill_ does not know every eight-bit type; those without a NaN hold their largest value
        tensor.copy_(torch.full((), math.nan, device=tensor.device).to(dtype).expand(tensor.shape))
    else:
        tensor.fill_(1 if dtype is torch.bool else torch.iinfo(dtype).max - 5)


def with_poison(inputs: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """The inputs with poisoned copies of those at some positions."""
    poisoned = list(inputs)
    for at in positions:
        poisoned[at] = _copy(inputs[at])
        poison(poisoned[at])
    return poisoned
