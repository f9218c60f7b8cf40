"""The tensors that configurations are run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tiledsl.autotuner.options import TuneOptions
from tiledsl.errors import TileError
from tiledsl.runtime.kernel import Kernel

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


def make_inputs(kernel: Kernel, options: TuneOptions, call_inputs: dict[str, Any] | None) -> list[Any]:
    """Inputs for a kernel: those of set_autotune_inputs, else of an eager call, else supply_prog's, else random."""
    wanted = [param for param in kernel.params if not param.is_output]
    device = "cpu" if kernel.target.kind == "interpret" else "cuda"
    given = given_inputs()
    if given is not None:
        inputs, source = list(given), "set_autotune_inputs"
    elif call_inputs is not None and all(param.name in call_inputs for param in wanted):
        inputs, source = [call_inputs[param.name] for param in wanted], "the call"
    elif options.supply_prog is not None:
        supplied = options.supply_prog(wanted)
        inputs = list(supplied) if isinstance(supplied, (list, tuple)) else [supplied]
        source = "supply_prog"
    else:
        profiler = kernel.get_profiler(options.supply_type)
        profiler.seed = _SEED
        return list(profiler.get_inputs())
    if len(inputs) != len(wanted):
        names = ", ".join(map(repr, wanted))
        raise TileError(f"autotune: {source} gives {len(inputs)} inputs; {kernel.name} takes {len(wanted)} ({names})")
    inputs = [item.to(device) if hasattr(item, "data_ptr") and item.device.type != device else item for item in inputs]
    kernel.check(wanted, inputs)
    return inputs


def copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs again, tensors cloned with their strides."""
    return [item.clone() if hasattr(item, "data_ptr") else item for item in inputs]
