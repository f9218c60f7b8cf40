"""The names of the tile language as entries of a reference: what `help()` shows of each, in parts."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import tiledsl.language as T
from tiledsl.language import names
from tiledsl.language.dtypes import DType

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n)+)", re.MULTILINE)
_COMMENT = re.compile(r"# (\w+) = (.+)")


@dataclasses.dataclass(frozen=True)
class Example:
    """The `Example:` part of a docstring.

    code: Python with `assert`, or statements of a kernel with comments around them: `# X = [1.0, 2.0]` before the
    statements says what a parameter holds, and after them what it holds when the kernel has run.
    """

    code: str

    @property
    def is_whole(self) -> bool:
        """Whether it is a program as it stands, not statements of a kernel."""
        return re.search(r"^assert |^def |^@|^with T.Kernel", self.code, re.MULTILINE) is not None

    def contents(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The tensors and what they hold, as Python with torch's names: before the statements, and after them."""
        lines = self.code.splitlines()
        found = [(number, _COMMENT.fullmatch(line)) for number, line in enumerate(lines)]
        first = next(number for number, comment in found if comment is None)
        before = [(comment[1], comment[2]) for number, comment in found if comment is not None and number < first]
        after = [(comment[1], comment[2]) for number, comment in found if comment is not None and number > first]
        return before, after


@dataclasses.dataclass(frozen=True)
class Entry:
    """Names that stand for one thing, the first of them the usual one; its signature, text and example."""

    names: tuple[str, ...]
    module: str
    signature: str
    text: str
    example: Example | None


def split(docstring: str) -> tuple[str, Example | None]:
    """A docstring without its `Example:` part, and that part."""
    found = _EXAMPLE.search(docstring + "\n")
    if found is None:
        return docstring, None
    rest = docstring[: found.start()] + (docstring + "\n")[found.end() :]
    return rest.strip(), Example(textwrap.dedent(found[1]).strip())


def entries() -> list[Entry]:
    """All public names of `T`, in the order in which their modules define them."""
    groups: dict[int, list[str]] = {}
    for name in names.NAMES:
        found = getattr(T, name)
        groups.setdefault(id(DType) if isinstance(found, DType) else id(found), []).append(name)
    made = []
    for group in groups.values():
        usual = min(group, key=lambda name: (getattr(getattr(T, name), "__name__", "") != name, name))
        found = getattr(T, usual)
        text, example = split(inspect.getdoc(found) or "")
        others = (name for name in group if name != usual)
        made.append(Entry((usual, *others), _module(found), _signature(usual, found), text, example))
    return made


def _module(found: Any) -> str:
    return str(getattr(found, "__module__", "tiledsl.language")).removeprefix("tiledsl.")


def _signature(name: str, found: Any) -> str:
    """A call as one writes it: without types, for these are `Any`, and without what has no effect."""
    if isinstance(found, DType):
        return f"T.{name}"
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return f"T.{name}"
    shown = [each.replace(annotation=each.empty, default=_plain(each.default)) for each in parameters]
    return f"T.{name}{inspect.Signature(shown)}"


class _Plain:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(default: Any) -> Any:
    return _Plain(f"T.{default}") if isinstance(default, names.GemmWarpPolicy) else default
