"""The text form of the IR, which tiledsl.ir.parser reads back. tiledsl.interchange has the generic form of MLIR.

One rule serves every operation, from its declared fields:

    %c = tile.load %A[%m, %k] mask=%ok {cached = true} : tensor<128x64xfloat16> (%arg: int32) { ... }

Operands stand in order, separated by commas; a variadic field is a bracketed list right behind; an optional operand is
`name=%value`. Attributes that have their default are left out. Result types follow the colon, then the regions with
their arguments. `// ` starts a comment. With locations on, a line ends in `loc("file" line column line column)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from tiledsl.ir.fields import attr, operand, operands
from tiledsl.location import UNKNOWN

if TYPE_CHECKING:
    from tiledsl.ir.core import Operation, Value


class Names(dict["Value", str]):
    """Gives each value a unique printable name, its own where possible."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[str] = set()
        self._numbers: dict[str, Iterator[int]] = {}

    def __missing__(self, value: Value) -> str:
        name = wanted = re.sub(r"\W", "_", value.name)
        numbers = self._numbers.setdefault(wanted, count(1 if wanted else 0))
        while not name or name in self._taken:
            name = f"{wanted}_{next(numbers)}" if wanted else str(next(numbers))
        self._taken.add(name)
        return self.setdefault(value, "%" + name)


def print_op(op: Operation, *, locations: bool = False) -> str:
    """The text of an operation and all inside."""
    return "\n".join(_lines(op, Names(), "", locations))


def _lines(op: Operation, names: Names, indent: str, locations: bool) -> Iterator[str]:
    text = head_text(op, names)
    loc, where = op.loc, ""
    if locations and loc is not UNKNOWN:
        where = f" loc({json.dumps(loc.file)} {loc.line} {loc.column} {loc.end_line} {loc.end_column})"
    for number, region in enumerate(op.regions):
        args = ", ".join(f"{names[arg]}: {arg.type}" for arg in region.args)
        head = text if number == 0 else "}"
        yield f"{indent}{head} ({args}) {{" if args else f"{indent}{head} {{"
        for inner in region:
            yield from _lines(inner, names, indent + "  ", locations)
    yield indent + ("}" if op.regions else text) + where


def head_text(op: Operation, names: Names) -> str:
    """The text of an operation up to its regions."""
    text = op.name + _operand_text(op, names)
    shown = [
        f"{key} = {attribute_text(value)}"
        for key, value in op.attributes.items()
        if not same_attribute(op.defaults.get(key, attr.REQUIRED), value)
    ]
    if shown:
        text += " {" + ", ".join(shown) + "}"
    if op.results:
        text = ", ".join(names[value] for value in op.results) + " = " + text
        text += " : " + ", ".join(str(value.type) for value in op.results)
    return text


def _operand_text(op: Operation, names: Names) -> str:
    parts: list[str] = []
    named = ""
    # Where there are nothing but lists, each is shown, to tell them apart.
    only_lists = len(op.operand_fields) > 1 and {*map(type, op.operand_fields)} == {operands}
    for field in op.operand_fields:
        values = [names[value] for value in field.values(op)]
        if type(field) is operand:
            parts += values or ["%?"]
        elif type(field) is operands:
            group = f"[{', '.join(values)}]"
            if only_lists or (values and not parts):
                parts.append(group)
            elif values:
                parts[-1] += group
        elif values:
            named += f" {field.name}={values[0]}"
    return (" " + ", ".join(parts) if parts else "") + named


def same_attribute(a: Any, b: Any) -> bool:
    """Equality that tells 1, 1.0 and true apart, and 0.0 from -0.0."""
    return type(a) is type(b) and repr(a) == repr(b)


def attribute_text(value: Any) -> str:
    """An attribute as text: true, 3, 0.5, inf, "text", none, (1, 2)."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        inner = ", ".join(map(attribute_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"{value!r} cannot be an attribute")
