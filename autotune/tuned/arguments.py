"""What entries depend on: a call's arguments as JSON, a hash of the function, and whether a configuration fits it."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.space import check_configs, tunables
from tiledsl.autotuner.storage.fingerprint import OPAQUE, canonical, program_text
from tiledsl.autotuner.tuned.entry import as_text
from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.kernels.jit import _argument

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction

OWN_KEY = "(key)"  # no parameter has this name


def as_json(value: Any) -> Any:
    """A value as an entry has it: numbers, texts, lists and objects as they are, element types by name, other objects
    by a text that tells them apart. TileError for what has none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if f"#{OPAQUE}" in value:
            raise TileError(f"the code of the pass {value.partition('#')[0]} cannot be told: it cannot be in a file")
        return str(value)
    if isinstance(value, (int, float)) and (isinstance(value, int) or math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    with contextlib.suppress(TypeError):  # numpy's integers
        return operator.index(value)
    text = canonical(value)
    if OPAQUE in text:
        raise TileError(f"{text.removeprefix(OPAQUE)} has no text that tells one from another: it cannot be in a file")
    return text.removeprefix("torch.dtype:torch.")


def given_arguments(function: AutotunedFunction, values: Mapping[str, Any], tuned: Collection[str]) -> dict[str, Any]:
    """The arguments of a call as an entry has them, those that are as the function's defaults included.

    values: the call's by name, see JitFunction._bind; of an eager call, T.const symbols stand for the tensors. tuned:
    the names that are tunables. What the option `key` returns is there as OWN_KEY. TileError for what cannot be in a
    file.
    """
    shared = function.options.do_not_specialize
    arguments = {name: value for name, value in values.items() if name not in tuned and name not in shared}
    if function.jit.is_triton:
        arguments = {n: v.dtype if hasattr(v, "data_ptr") else v for n, v in arguments.items()}
    elif function.jit.is_eager:
        from tiledsl.frontend.elaborate import eager_sizes

        described = {name: _argument(value) for name, value in arguments.items()}
        sizes = eager_sizes(function.jit.function, described, function.jit.frame_locals)
        optional = {n for n, p in function.jit.signature.parameters.items() if p.default is not p.empty}
        tensors = {name for name, value in arguments.items() if value is not described[name]}
        told = dict.fromkeys(tensors & optional, "tensor")
        arguments = {n: v for n, v in arguments.items() if n not in tensors and n not in sizes} | told | sizes
    if function.options.key is not None:
        arguments[OWN_KEY] = function.options.key(**values)
    return {name: as_json(value) for name, value in arguments.items()}


def defaults(function: AutotunedFunction) -> dict[str, Any]:
    """The defaults of the function's parameters as JSON, of those that have one that JSON has."""
    values = {}
    for name, parameter in function.jit.signature.parameters.items():
        if parameter.default is not parameter.empty:
            with contextlib.suppress(TileError):
                values[name] = as_json(parameter.default)
    return values


def without_defaults(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not as the defaults; a changed default changes the function's source hash."""
    return {n: value for n, value in arguments.items() if n not in known or as_text(known[n]) != as_text(value)}


def source_of(function: AutotunedFunction, tuned: Collection[str]) -> str:
    """16 hexadecimal digits for the function: its code and what it refers to, without the defaults of `tuned`, and the
    options of @tiledsl.jit. Comments, layout and where it is defined do not count."""
    names = ("grid", "heuristics", "descriptors") if function.jit.is_triton else ("out_idx", "pass_configs")
    options = {name: function.jit.options.get(name) for name in names}
    return digest(program_text(function.jit.function, tuned) + canonical(options))[:16]


def mismatch_reason(function: AutotunedFunction, config: Mapping[str, Any]) -> str:
    """Why the function does not take a configuration; "" if it does."""
    try:
        check_configs([config], function.jit.signature, function.name)
    except TileError as error:
        notes = [each if isinstance(each, str) else each[0] for each in error.notes]
        return "; ".join([error.message.partition(": configuration 0 ")[2] or error.message, *notes])
    if not callable(function.configs):
        always = [n for n in tunables(function.configs) if all(n in each for each in function.configs)]
        missing = [name for name in always if name not in config]
        if missing:
            return f"sets no {missing[0]!r}, which the function's configurations set"
    return ""


def in_file(config: Mapping[str, Any], listed: Any) -> dict[str, Any]:
    """A configuration as an entry has it. listed: the function's configurations. TileError for values that could not be
    told from a file, as objects of which there is no list."""
    written = {name: as_json(value) for name, value in config.items()}
    read = restored(written, listed)
    wrong = [name for name, value in config.items() if not _same(read[name], value)]
    if wrong:
        shown = f"{wrong[0]}={config[wrong[0]]!r}"
        raise TileError(f"the tunable {shown} cannot be in a file; use numbers and texts, or a list of configurations")
    return written


def restored(config: Mapping[str, Any], listed: Any) -> dict[str, Any]:
    """The configuration of an entry for the function: that of its list which reads so in a file, else as it is."""
    if isinstance(listed, Sequence):
        wanted = as_text(config)
        for each in listed:
            with contextlib.suppress(TileError):
                if as_text({name: as_json(value) for name, value in each.items()}) == wanted:
                    return dict(each)
    return dict(config)


def _same(one: Any, other: Any) -> bool:
    """Whether they mean the same to a builder: a list may stand for a tuple."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)
