"""A kernel as an operator of torch (torch.library), so that torch.compile, torch.export and autograd see one node.

The operator is made when it is first needed: under a tracer or a mode of torch, or by `Kernel.as_torch_op`.
"""

from __future__ import annotations

import re
import threading
import types
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType
from tiledsl.kernels.torch_rules import Argument, Definition, argument_name, autocast, define
from tiledsl.runtime.launch import scalar_type

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

_SCALARS = {"int": "SymInt", "float": "float", "bool": "bool"}
lock = threading.RLock()
operators: dict[str, Any] = {}  # operators by name
definitions: dict[str, Definition] = {}


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


def arguments_of(kernel: Kernel, count: int) -> tuple[Argument, ...]:
    """The operator's arguments for a call with all parameters (what it writes is marked) or with the inputs alone."""
    params = kernel.params if count == len(kernel.params) else [p for p in kernel.params if not p.is_output]
    written = written_names(kernel)
    return tuple(
        Argument(
            argument_name(param.name),
            _SCALARS[scalar_type(param.dtype)] if not param.is_tensor else "Tensor" if param.is_used else "Tensor?",
            param.dtype,
            param.is_tensor and param.name in written,
            param.strides is not None,
        )
        for param in params
    )


def as_declared(kernel: Kernel, given: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name as autocast gives them to a kernel, cut off from the autograd graph."""
    import torch

    plain = {name: each.detach() if isinstance(each, torch.Tensor) else each for name, each in given.items()}
    inputs = [param for param in kernel.params if not param.is_output]
    for param, argument in zip(inputs, arguments_of(kernel, kernel.input_count)):
        if param.name in plain:
            plain[param.name] = autocast(argument, plain[param.name])
    return plain


def operator(kernel: Kernel, count: int, name: str = "") -> Any:
    """The operator (a torch.ops overload) of calls with `count` arguments, made at the first time.

    name: "namespace::name"; by default tiledsl::<kernel>_<digest of what it does>. Raises TileError for a name that is
    taken by another kernel.
    """
    with lock:
        known = kernel.operators.get(count)
        if known is not None and not name:
            return known
        full = name or _default_name(kernel, count)
        if full in operators and not name:
            found = operators[full]
        else:
            found = define_named(kernel.name, definition_of(kernel, count), full)
        kernel.operators = {**kernel.operators, count: found}
        return found


def define_named(owner: str, definition: Definition, name: str) -> Any:
    """Register an operator under a name that is free. Raises TileError for another one."""
    import torch

    with lock:
        if re.fullmatch(r"\w+::\w+", name) is None:
            raise TileError(f"{owner}: {name!r} is not a name of an operator; one is 'namespace::name'")
        namespace, _, short = name.partition("::")
        if name in operators or hasattr(getattr(torch.ops, namespace), short):
            raise TileError(f"{owner}: there is an operator {name} already", notes=["give another name"])
        operators[name], definitions[name] = define(definition, name), definition
        return operators[name]


def _default_name(kernel: Kernel, count: int) -> str:
    parts = (kernel.source, repr(kernel.params), str(kernel.target), str(count))
    # Another kernel's gradients may be others, in another process too: torch keeps compiled graphs on disk by names.
    own = f"_{uuid.uuid4().hex[:12]}" if kernel.backward is not None else ""
    return f"tiledsl::{kernel.name}_{digest(chr(10).join(parts))[:12]}{own}"


def definition_of(kernel: Kernel, count: int) -> Definition:
    """What torch is told of calls with `count` arguments."""
    into = count == len(kernel.params)
    params = kernel.params if into else [p for p in kernel.params if not p.is_output]

    def run(*arguments: Any) -> Any:
        result = kernel.caller(count).run(*arguments)
        return None if into else tuple(result) if isinstance(result, (list, tuple)) else result

    def fake(*arguments: Any) -> Any:
        kernel.check(params, arguments)
        if into:
            return None
        made = outputs_for(kernel, arguments)
        return made[0] if len(made) == 1 else made

    returns = 0 if into else len(kernel.outputs)
    return Definition(arguments_of(kernel, count), returns, run, fake, kernel.backward)
