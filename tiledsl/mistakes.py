"""Kinds of mistakes of which there is more to say than a message holds: what `tiledsl explain CODE` prints.

mistakes.md has them, and is a page of the manual's site, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
_SECTION = re.compile(
    r"^## (?P<code>[\w-]+)\n\n(?P<title>.+)\.\n\n(?P<text>(?:.+\n)+)\n"
    r"```python\n(?P<wrong>(?:.*\n)*?)```\n\n```python\n(?P<right>(?:.*\n)*?)```$",
    re.M,
)


@dataclass(frozen=True)
class Mistake:
    """What a kind of mistake is, why it is one, and what to do; `wrong` makes it, `right` does not."""

    code: str
    title: str
    text: str
    wrong: str
    right: str


@cache
def mistakes() -> dict[str, Mistake]:
    """All of them, by their codes."""
    found = [Mistake(**each.groupdict()) for each in _SECTION.finditer(PAGE.read_text(encoding="utf-8"))]
    return {each.code: each for each in found}
