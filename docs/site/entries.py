"""The names of the tile language as entries of a reference: what `help()` shows of each, in parts."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any

import tiledsl.language as T
from tiledsl.language import names

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n)+)", re.MULTILINE)
_COMMENT = re.compile(r"^# (\w+) = (.+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Example:
    """The `Example:` part of a docstring.

    code: a script, with `assert`; or statements of a kernel with comments around them: `# X = [1.0, 2.0]` before the
    statements says what a parameter holds, and after them what it holds when the kernel has run. Unless the statements
    begin with T.Kernel, they stand in one of one block of 32 threads.
    """

    code: str

    @property
    def is_script(self) -> bool:
        """Whether it is Python with `assert`, not statements of a kernel."""
        return re.search(r"^(assert |def |@)", self.code, re.MULTILINE) is not None

    def parts(self) -> tuple[dict[str, str], str, dict[str, str]]:
        """What tensors hold before, as Python with torch's names; the statements; and what tensors hold after them."""
        lines = self.code.splitlines()
        inner = [number for number, line in enumerate(lines) if not _COMMENT.fullmatch(line)]
        before, after = "\n".join(lines[: inner[0]]), "\n".join(lines[inner[-1] + 1 :])
        statements = "\n".join(lines[inner[0] : inner[-1] + 1])
        return dict(_COMMENT.findall(before)), statements, dict(_COMMENT.findall(after))


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
    """All public names of `T`, in the order in which their modules define them; aliases are of one entry."""
    groups: dict[Any, list[str]] = {}
    for name in names.NAMES:
        found = getattr(T, name)
        kind = found if isinstance(found, (FunctionType, type)) else type(found)
        groups.setdefault(kind, []).append(name)
    made = []
    for group in groups.values():
        usual = min(group, key=lambda name: (getattr(getattr(T, name), "__name__", "") != name, *_rank(name)))
        found = getattr(T, usual)
        text, example = split(inspect.getdoc(found) or "")
        others = (name for name in group if name != usual)
        made.append(Entry((usual, *others), _module(found), _signature(usual, found), text, example))
    return sorted(made, key=lambda entry: (entry.module, _line(getattr(T, entry.names[0]))))


def _line(found: Any) -> int:
    """Where its module defines it; what is made by a function comes last."""
    if isinstance(found, FunctionType) and found.__name__ == found.__code__.co_name:
        return found.__code__.co_firstlineno
    kind = found if isinstance(found, type) else type(found)
    return 1 << 20 if isinstance(found, FunctionType) else inspect.findsource(kind)[1]


def _rank(name: str) -> tuple[bool, int, str]:
    """Of names without one of their own: a class before its objects, and short names first."""
    return not isinstance(getattr(T, name), type), len(name), name


def _module(found: Any) -> str:
    return str(getattr(found, "__module__", "tiledsl.language")).removeprefix("tiledsl.")


def _signature(name: str, found: Any) -> str:
    """A call as one writes it: without types, for these are `Any`, and without what has no effect."""
    if isinstance(found, enum.EnumMeta):
        return " ".join(f"T.{name}.{each}" for each in found.__members__)
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
