"""What `tiledsl explain` says of a word that is no program: a kind of mistake, or an operation of the IR."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import tiledsl.dialects  # registers the operations
from tiledsl.commands.report import give
from tiledsl.errors import TileError, meant
from tiledsl.ir.core import OPERATIONS, Operation
from tiledsl.ir.fields import attr
from tiledsl.mistakes import mistakes
from tiledsl.tables import aligned

assert tiledsl.dialects


def is_word(name: str) -> bool:
    """Whether a name is to be explained here: a code is of words with hyphens."""
    return name in OPERATIONS or re.fullmatch(r"[a-z]+(-[a-z]+)+", name) is not None


def explained(name: str) -> str:
    """The explanation of a code or of an operation; for --json, too. TileError for another name."""
    if name in OPERATIONS:
        found = operation(OPERATIONS[name])
        give(operation=found)
        return "\n".join(_operation_lines(found))
    known = mistakes()
    if name not in known:
        raise TileError(f"{name} is neither a file nor the code of a mistake", notes=[meant(name, known)])
    mistake = known[name]
    give(mistakes=[asdict(mistake)])
    parts = [f"{name}: {mistake.title}", mistake.text.strip()]
    for title, code in (("gives this error:", mistake.wrong), ("works:", mistake.right)):
        parts += [title, textwrap.indent(code, "    ")]
    return "\n\n".join(parts)


def listed() -> str:
    """All codes with their titles; for --json with all that is known of them."""
    known = mistakes()
    give(mistakes=[asdict(each) for each in known.values()])
    return "\n".join(aligned([[each.code, each.title] for each in known.values()], "ll"))


def operation(kind: type[Operation]) -> dict[str, Any]:
    """An operation for programs: its class, what it takes and gives, and its text."""
    return {
        "name": kind.name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "operands": [field.name for field in kind.operand_fields],
        "attributes": {
            name: None if field.default is attr.REQUIRED else repr(field.default)
            for name, field in kind.attr_fields.items()
        },
        "results": [field.name for field in kind.result_fields],
        "regions": [field.name for field in kind.region_fields],
        "text": inspect.getdoc(kind) or "",
    }


def _operation_lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['name']}: {found['class']}"
    attributes = [f"{name} (required)" if value is None else f"{name}={value}" for name, value in found["attributes"].items()]  # fmt: skip # noqa: E501
    parts = {**{name: found[name] for name in ("operands", "results", "regions")}, "attributes": attributes}
    yield from (f"  {name}: {', '.join(values)}" for name, values in parts.items() if values)
    yield f"\n{found['text']}"
