"""What Triton compiles a jitted function for when it is called with given arguments; no GPU is needed to say so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.launch_stored import specialised

_TYPE = r"\*?k?(?:[iu](?:1|8|16|32|64)|fp(?:16|32|64)|bf16|fp8\w+)"
_DESCRIPTOR = r"tensordesc<.*>"


def specialise(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], list[str], dict[str, Any]]:
    """Types of the run-time arguments, constants, the arguments that are multiples of 16, and the rest: options.

    An argument is what a launch is given, or a type's name: "*fp16:16", "i32". TileError for others and missing ones.
    """
    own = {name: value for name, value in keywords.items() if name in function.arg_names}
    options = {name: value for name, value in keywords.items() if name not in own}
    try:
        bound = function.signature.bind(*arguments, **own)
    except TypeError as error:
        raise TileError(f"{function.__name__}: {error}") from None
    bound.apply_defaults()
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = []
    for param in function.params:
        value = bound.arguments[param.name]
        is_one = type(value) is int and value == 1 and not param.do_not_specialize and not param.annotation_type
        if param.is_constexpr or value is None or is_one:
            constants[param.name] = value
            continue
        types[param.name], aligned = _type(function, param, value)
        if aligned and not param.do_not_specialize and not param.do_not_specialize_on_alignment:
            divisible.append(param.name)
    return types, constants, divisible, options


def _type(function: Any, param: Any, value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        kind, _, alignment = value.partition(":") if not re.fullmatch(_DESCRIPTOR, value) else (value, "", "")
        if not re.fullmatch(f"{_TYPE}|{_DESCRIPTOR}", kind) or alignment not in ("", "16"):
            raise TileError(
                f"{function.__name__}: {param.name} is {value!r}, no type of Triton's",
                notes=['types are written "*fp16:16" (an address that is a multiple of 16), "i32", "i32:16", "fp32"'],
            )
        return kind, bool(alignment)
    if isinstance(value, bool):
        return param.annotation_type or "u1", False
    try:
        kind, aligned = specialised(value, bool(param.do_not_specialize) or bool(param.annotation_type))
    except ValueError as error:
        raise TileError(
            f"{function.__name__}: {param.name} is {error}, which is not known here",
            notes=['an argument is a tensor, a number, a tensor descriptor, or the name of a type, such as "*fp16:16"'],
        ) from None
    if type(value) is int and aligned is None and not param.do_not_specialize:
        aligned = value % 16 == 0
    return param.annotation_type or kind, bool(aligned)
