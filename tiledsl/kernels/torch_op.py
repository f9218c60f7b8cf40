"""A kernel as an operator of torch (torch.library), so that torch.compile, torch.export and autograd see one node.

The operator is made when it is first needed: under a tracer or a mode of torch, or by `Kernel.as_torch_op`.
"""

from __future__ import annotations

import hashlib
import re
import threading
import types
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType
from tiledsl.runtime.launch import scalar_type

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

_SCALARS = {"int": "SymInt", "float": "float", "bool": "bool"}
_lock = threading.RLock()
_made: dict[str, Any] = {}


@dataclass(frozen=True)
class Backward:
    """How gradients of a kernel are found; see Kernel.register_backward."""

    function: Callable[..., Any]
    setup_context: Callable[..., None] | None
    is_kernel: bool


def outputs_for(kernel: Kernel, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Empty outputs for these inputs, as the emitted host function makes them. Inputs may be fake tensors."""
    module = kernel.loaded
    entry = getattr(module, kernel.module.entry)
    scope = {**module.__dict__, kernel.module.into: lambda *arguments: None}
    made = types.FunctionType(entry.__code__, scope, entry.__name__, entry.__defaults__)(*inputs)
    return tuple(made) if isinstance(made, (list, tuple)) else (made,)


def with_outputs(kernel: Kernel, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """All parameters' arguments: these inputs, and empty outputs."""
    rest, made = iter(inputs), dict(zip(kernel.outputs, outputs_for(kernel, inputs)))
    return tuple(made[number] if p.is_output else next(rest) for number, p in enumerate(kernel.params))


def written_names(kernel: Kernel) -> set[str]:
    """The parameters that the program writes."""
    from tiledsl.analysis.block_access import root_buffer
    from tiledsl.ir.core import Effect

    root = kernel.program_root()
    written = set()
    for op in root.walk():
        if op.effects & Effect.WRITE:
            named = [getattr(op, name, None) for name in ("target", "buffer", "c")]
            targets = [value for value in named if value is not None] or list(op.operands)
            written |= {root_buffer(value) for value in targets if isinstance(value.type, BufferType)}
    return {str(name) for name, value in zip(root.parameters, root.body.args) if value in written}


def schema(kernel: Kernel, count: int) -> str:
    """The operator's schema for a call with all parameters (what it writes is marked) or with the inputs alone."""
    into = count == len(kernel.params)
    params = kernel.params if into else [p for p in kernel.params if not p.is_output]
    written = written_names(kernel)
    parts = []
    for number, param in enumerate(params):
        kind = _SCALARS[scalar_type(param.dtype)] if not param.is_tensor else "Tensor"
        if param.is_tensor and param.name in written:
            kind = f"Tensor(a{number}!)"
        parts.append(f"{kind} {_argument_name(param.name)}")
    returned = [] if into else ["Tensor"] * len(kernel.outputs)
    return f"({', '.join(parts)}) -> {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}"


def _argument_name(name: str) -> str:
    return f"{name}_" if name in ("self", "out", "from", "int", "float", "bool", "str") else name


def operator(kernel: Kernel, count: int, name: str = "") -> Any:
    """The operator (a torch.ops overload) of calls with `count` arguments, made at the first time.

    name: "namespace::name"; by default tiledsl::<kernel>_<digest of what it does>. Raises TileError for a name that is
    taken by another kernel.
    """
    import torch

    with _lock:
        known = kernel.operators.get(count)
        if known is not None and not name:
            return known
        full = name or _default_name(kernel, count)
        if full in _made and not name:
            found = _made[full]
        elif re.fullmatch(r"\w+::\w+", full) is None:
            raise TileError(f"{kernel.name}: {full!r} is not a name of an operator; one is 'namespace::name'")
        elif full in _made or hasattr(getattr(torch.ops, full.split("::")[0]), full.split("::")[1]):
            raise TileError(f"{kernel.name}: there is an operator {full} already", notes=["give another name"])
        else:
            found = _made[full] = _define(kernel, count, full)
        kernel.operators = {**kernel.operators, count: found}
        return found


def _default_name(kernel: Kernel, count: int) -> str:
    parts = (kernel.source, repr(kernel.params), str(kernel.target), str(count))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    # Another kernel's gradients may be others, in another process too: torch keeps compiled graphs on disk by names.
    own = f"_{uuid.uuid4().hex[:12]}" if kernel.backward is not None else ""
    return f"tiledsl::{kernel.name}_{digest}{own}"


def _define(kernel: Kernel, count: int, name: str) -> Any:
    import torch

    into = count == len(kernel.params)
    params = kernel.params if into else [p for p in kernel.params if not p.is_output]
    signature = schema(kernel, count)

    def run(*arguments: Any) -> Any:
        result = kernel.caller(count).run(*arguments)
        return None if into else tuple(result) if isinstance(result, (list, tuple)) else result

    def fake(*arguments: Any) -> Any:
        kernel.check(params, arguments)
        if into:
            return None
        made = outputs_for(kernel, arguments)
        return made[0] if len(made) == 1 else made

    mutated = [_argument_name(p.name) for p in params if f"!) {_argument_name(p.name)}" in signature]
    defined = torch.library.custom_op(name, run, mutates_args=mutated, schema=signature)
    defined.register_fake(fake)
    if kernel.backward is not None and not into:
        backward, setup_context = _autograd(kernel, kernel.backward)
        defined.register_autograd(backward, setup_context=setup_context)
    namespace, _, short = name.partition("::")
    return getattr(getattr(torch.ops, namespace), short).default


def _autograd(kernel: Kernel, how: Backward) -> Any:
    """torch.library's two functions: gradients from what was saved, and what is saved."""
    params = [p for p in kernel.params if not p.is_output]

    def save_all(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, (list, tuple)) else (output,)
        ctx.save_for_backward(*(each for each, p in zip(inputs, params) if p.is_tensor), *outputs)
        ctx.scalars = tuple(each for each, p in zip(inputs, params) if not p.is_tensor)

    def backward(ctx: Any, *gradients: Any) -> Any:
        gradients = tuple(each if each is None else each.contiguous() for each in gradients)
        if not how.is_kernel:
            return how.function(ctx, *gradients)
        found = how.function(*ctx.saved_tensors, *gradients, *ctx.scalars)
        found = iter(found if isinstance(found, (list, tuple)) else (found,))
        return tuple(next(found, None) if p.is_tensor else None for p in params)

    return backward, how.setup_context or save_all


def check_backward(kernel: Kernel, backward: Any) -> None:
    """Raises TileError if gradients cannot be given to a kernel."""
    if not kernel.outputs:
        raise TileError(
            f"{kernel.name} writes into tensors that it is given, for which torch keeps no gradients",
            notes=["compile it with out_idx, so that it returns its outputs"],
        )
    if not callable(backward):
        raise TileError(f"{kernel.name}: backward is a function or a kernel, not {type(backward).__name__}")
