"""JSON as files have it that may be from anywhere: no NaN, no infinity, values that are no JSON as their text."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

NONSENSE = (ValueError, TypeError, KeyError, RecursionError, OverflowError)  # what reading a file may raise
_DEEPEST = 6


def plain(value: Any, depth: int = 0) -> Any:
    """A value as strict JSON has it: sequences as lists, infinities as null, other objects as their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(name): plain(item, depth + 1) for name, item in value.items()}
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return str(value)


def parse(text: str | bytes) -> Any:
    """Strict JSON: no NaN, no infinity, not even as 1e999. Raises one of NONSENSE."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def repeated_names(text: str | bytes) -> list[str]:
    """The names that come twice in one object, of which JSON takes the last."""
    found: list[str] = []

    def note(pairs: Sequence[tuple[str, Any]]) -> None:
        found.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)

    json.loads(text, object_pairs_hook=note)
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} in a file")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} in a file")
    return value


def json_text(data: Mapping[str, Any]) -> bytes:
    """Strict JSON that people can read."""
    return json.dumps(data, indent=1, allow_nan=False).encode() + b"\n"
