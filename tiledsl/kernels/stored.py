"""A kernel from stored Triton source: no builder, no lowering until the IR is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError
from tiledsl.formulas import checked
from tiledsl.kernels.kernel import Kernel
from tiledsl.report.notebook import Stages
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target

if TYPE_CHECKING:
    from tiledsl.codegen.emitted import EmittedKernel
    from tiledsl.dialects.tile import FuncOp


def describe(kernel: Kernel) -> dict[str, Any]:
    """What StoredKernel needs, as values that JSON has."""
    program = kernel.program if isinstance(kernel, StoredKernel) else kernel.ir()
    return {"program": program, **describe_call(kernel)}


def pickled(kernel: Kernel) -> tuple[Any, ...]:
    """What pickle makes of a kernel: its description, from which `unpickled` makes a StoredKernel."""
    if kernel.origin is not None:
        raise TileError(
            f"{kernel.name} runs from files of a level, which are not pickled with it",
            notes=["save_levels(folder) keeps them; make it again with from_level(level, folder)"],
        )
    known = {name: getattr(kernel, name) for name in ("config", "latency", "ref_latency", "backward")}
    return unpickled, (describe(kernel), known)


def unpickled(described: Mapping[str, Any], known: Mapping[str, Any]) -> StoredKernel:
    """The kernel that was pickled. It is lowered already; Triton compiles at the first call."""
    kernel = StoredKernel(described)
    kernel.__dict__.update(known)
    return kernel


def describe_call(kernel: Kernel) -> dict[str, Any]:
    """What calls of a kernel need, as values that JSON has; see `call_fields`."""
    return {
        "name": kernel.name,
        "target": str(kernel.target),
        "pass_configs": dict(kernel.pass_configs),
        "source": kernel.source,
        "entry": kernel.module.entry,
        "into": kernel.module.into,
        "outputs": list(kernel.outputs),
        "params": [
            {
                "name": param.name,
                "dtype": param.dtype,
                "shape": list(param.shape) if param.is_tensor else None,
                "strides": None if param.strides is None else list(param.strides),
                **({"formulas": param.formulas} if param.formulas else {}),
                **({} if param.is_used else {"unused": True}),
                **({"packed": True} if param.is_packed else {}),
            }
            for param in kernel.params
        ],
        "kernels": [
            asdict(emitted) | {"divisible_by_16": list(emitted.divisible_by_16), "grid": list(emitted.grid)}
            for emitted in kernel.module.kernels
        ],
    }


class StoredKernel(Kernel):
    """As the Kernel that `describe` described, with its source as it was. `prim_func` is None."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or KeyError for a description that makes no sense."""
        self.program = _text(described["program"])
        self.__dict__.update(call_fields(described))
        self.prim_func = None
        self.config = None
        self.latency = self.ref_latency = None
        self.remarks = ()
        self._build = lambda: _parsed(self.program)
        self._places = [None] * len(self.module.kernels)

    @cached_property
    def stages(self) -> Stages:
        """As of the program lowered again, by this version of the compiler; the last one is the stored source."""
        from tiledsl.ir.pass_manager import Stage

        *stages, last = Kernel(self._build, self.target, self.pass_configs).stages
        return Stages([*stages, Stage(last.name, last.spec, last.milliseconds, (self.origin or self).source)])

    def for_target(self, target: Target) -> Kernel:
        """The same program lowered for another target."""
        return Kernel(self._build, target, self.pass_configs, self.config)


def call_fields(described: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the Kernel that `describe_call` described, as far as calls need them.

    Raises ValueError, TypeError or KeyError for a description that makes no sense.
    """
    from tiledsl.codegen.emitted import EmittedModule

    outputs = tuple(_count(each) for each in _list(described["outputs"]))
    params = [_parameter(each, i in outputs) for i, each in enumerate(_list(described["params"]))]
    if any(each >= len(params) for each in outputs):
        raise ValueError("an output that is not a parameter")
    kernels = tuple(_kernel(each) for each in _list(described["kernels"]))
    return {
        "name": _identifier(described["name"]),
        "target": Target.parse(_text(described["target"])),
        "pass_configs": dict(_mapping(described["pass_configs"])),
        "outputs": outputs,
        "params": params,
        "_inputs": [each for each in params if not each.is_output],
        "module": EmittedModule(
            _text(described["source"]), _identifier(described["entry"]), _identifier(described["into"]), kernels
        ),
    }


# Said here and not in the class, which does not know of those kernels that are made without lowering.
Kernel.__reduce__ = pickled  # type: ignore[method-assign, assignment]


def _parsed(text: str) -> FuncOp:
    from tiledsl.dialects.tile import FuncOp
    from tiledsl.ir.parser import parse_op
    from tiledsl.ir.printer import print_op

    root = parse_op(text)
    if not isinstance(root, FuncOp):
        raise ValueError(f"{root.name} is not a program: {print_op(root)[:80]}")
    return root


def _parameter(described: Mapping[str, Any], is_output: bool) -> Parameter:
    name, dtype, shape, strides = (described[each] for each in ("name", "dtype", "shape", "strides"))
    if dtype not in Target("interpret").dtypes:
        raise ValueError(f"element type {dtype!r}")
    if shape is None and strides is not None:
        raise ValueError("strides of a scalar")
    if shape is None:
        return Parameter(_identifier(name), dtype, is_output)
    formulas = {_identifier(each): checked(given) for each, given in _mapping(described.get("formulas", {})).items()}
    strides = None if strides is None else _dims(strides)
    flags = described.get("unused", False) is not True, described.get("packed", False) is True
    return Parameter(_identifier(name), dtype, is_output, _dims(shape), strides, formulas, *flags)


def _kernel(described: Mapping[str, Any]) -> EmittedKernel:
    from tiledsl.codegen.emitted import EmittedKernel

    return EmittedKernel(
        _identifier(described["name"]),
        {_identifier(name): _text(type) for name, type in _mapping(described["signature"]).items()},
        _count(described["num_warps"]),
        _count(described["num_stages"]),
        dict(_mapping(described["options"])),
        dict(_mapping(described["constexprs"])),
        tuple(_identifier(each) for each in _list(described["divisible_by_16"])),
        tuple(None if each is None else _count(each) for each in _list(described["grid"])),
    )


def _dims(values: Any) -> tuple[int | str, ...]:
    return tuple(each if isinstance(each, str) and each.isidentifier() else _count(each) for each in _list(values))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value


def _identifier(value: Any) -> str:
    if not _text(value).isidentifier():
        raise ValueError(f"{value[:40]!r} is not a name")
    return str(value)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{str(value)[:40]!r} is not a list")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{str(value)[:40]!r} is not an object")
    return value
