"""Docstrings as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

_LABEL = re.compile(r"(Before|After|Needs|Keeps|Errors|Note):\s+")


def escaped(text: str) -> str:
    """Plain text with code in backticks as Markdown: everything else stands as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]#|~])", r"\\\1", part) for part in parts)


def code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def docstring(text: str, sentence: Callable[[str], str] = escaped) -> str:
    """A docstring: paragraphs, indented code, and a pass's parts (Before and After as code, Needs, Keeps, Errors)."""
    return "\n\n".join(_blocks(text, sentence))


def _blocks(text: str, sentence: Callable[[str], str]) -> Iterator[str]:
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if not line.strip():
            continue
        label = _LABEL.match(line)
        taken = [line]
        while lines and (lines[0].startswith("  ") or (label is None and lines[0].strip() and not _starts(lines[0]))):
            taken.append(lines.pop(0))
        if label and label[1] == "Before":
            yield from _before_and_after(taken)
        elif label:
            words = " ".join(each.strip() for each in taken)
            for part in re.split(rf"(?<=\.) (?={_LABEL.pattern})", words)[::2]:
                name, _, said = part.partition(":")
                yield f"**{name}:** {sentence(said.strip())}"
        elif line.startswith("    "):
            yield code("\n".join(each[4:] for each in taken))
        else:
            yield sentence(" ".join(each.strip() for each in taken))


def _starts(line: str) -> bool:
    return _LABEL.match(line) is not None


def _before_and_after(lines: Sequence[str]) -> Iterator[str]:
    """Two columns as two blocks, if they are columns; else the text as it stands."""
    column = lines[0].find("After:")
    start = re.match(r"Before:\s+", lines[0])
    body = re.compile(r"After:\s+").match(lines[0], max(column, 0))
    if column < 0 or start is None or body is None or any(line[column - 1 : column].strip() for line in lines):
        yield code("\n".join(lines))
        return
    left = [line[min(start.end(), column) : column].rstrip() for line in lines]
    right = [line[column:].removeprefix(lines[0][column : body.end()]).rstrip() for line in lines]
    indent = body.end() - column
    right = [
        each if number == 0 else each[min(indent, len(each) - len(each.lstrip())) :]
        for number, each in enumerate(right)
    ]
    yield "Before:"
    yield code("\n".join(left))
    yield "After:"
    yield code("\n".join(right))
