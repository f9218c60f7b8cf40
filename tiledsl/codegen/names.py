"""Unique Python names."""

from __future__ import annotations

import builtins
import keyword
import re

RESERVED = {*keyword.kwlist, *dir(builtins), "tl", "triton", "torch", "libdevice", "gdc_wait", "match", "case", "type"}


class Names:
    """Hands out names of one scope: a valid identifier each, and each once."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self._taken = set(taken or ())
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        base = wanted
        if not base.isidentifier():
            base = re.sub(r"\W", "_", wanted) or "x"
            if base[0].isdigit():
                base = "_" + base
        if base in RESERVED:
            base += "_"
        name, number = base, self._next.get(base, 1)
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._next[base] = number
        self._taken.add(name)
        return name
