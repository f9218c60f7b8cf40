"""Two texts side by side: the lines that differ, with some around them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePath

from tiledsl.errors import source_line

_LOCATION = re.compile(r' loc\(("(?:[^"\\]|\\.)*") (\d+) \d+ (\d+) \d+\)$')


@dataclass(frozen=True)
class Place:
    """Lines of a user's file, counted from 1."""

    file: str
    line: int
    end_line: int

    @property
    def name(self) -> str:
        """The file's name alone: a page is read on other machines."""
        return PurePath(self.file).name.encode(errors="backslashreplace").decode()

    @property
    def text(self) -> str:
        """What stands there; "" if the file is not here."""
        with contextlib.suppress(ValueError):  # of what is no path
            return source_line(self.file, self.line).strip()
        return ""


@dataclass(frozen=True)
class Line:
    """A line of IR, and where in the user's file it comes from."""

    text: str
    place: Place | None = None


@dataclass(frozen=True)
class Row:
    """What stands side by side. kind: "same", "changed" (one side may be None), or "gap" where lines are left out."""

    kind: str
    before: Line | None = None
    after: Line | None = None


def lines_of(text: str) -> list[Line]:
    """The lines of IR that was printed with locations."""
    found = []
    for line in text.split("\n"):
        match = _LOCATION.search(line)
        place = Place(json.loads(match[1]), int(match[2]), int(match[3])) if match else None
        found.append(Line(line[: match.start()] if match else line, place))
    return found


def side_by_side(before: Sequence[Line], after: Sequence[Line], context: int = 3) -> list[Row]:
    """The rows in which two texts differ, each with so many equal lines around it; nothing if no text differs."""
    matcher = SequenceMatcher(None, [each.text for each in before], [each.text for each in after], autojunk=False)
    return list(_rows(matcher, before, after, context))


def _rows(matcher: SequenceMatcher[str], before: Sequence[Line], after: Sequence[Line], context: int) -> Iterator[Row]:
    reached = 0
    for group in matcher.get_grouped_opcodes(context):
        if group[0][1] > reached:
            yield Row("gap")
        for tag, i, i_end, j, j_end in group:
            kind = "same" if tag == "equal" else "changed"
            for number in range(max(i_end - i, j_end - j)):
                left = before[i + number] if i + number < i_end else None
                right = after[j + number] if j + number < j_end else None
                yield Row(kind, left, right)
        reached = group[-1][2]
    if 0 < reached < len(before):
        yield Row("gap")


@dataclass(frozen=True)
class Quoted:
    """A line of a user's file; one without a number stands for what is left out."""

    number: int | None
    text: str = ""


def quoted(lines: Sequence[Line], around: int = 2) -> dict[str, list[Quoted]]:
    """What of the users' files the lines come from, by the file's name, with so many lines around; files that are not
    here are left out."""
    numbers: dict[str, set[int]] = {}
    for place in (each.place for each in lines if each.place is not None):
        numbers.setdefault(place.file, set()).update((place.line, place.end_line))
    by_file: dict[str, list[Quoted]] = {}
    for file, hit in numbers.items():
        if not any(source_line(file, number) for number in hit):
            continue
        shown = sorted({near for number in hit for near in range(max(1, number - around), number + around + 1)})
        rows: list[Quoted] = []
        for before, number in zip([0, *shown], shown):
            if before and number > before + 1:
                rows.append(Quoted(None))
            rows.append(Quoted(number, source_line(file, number)))
        while rows and not rows[-1].text.strip():
            rows.pop()
        by_file.setdefault(PurePath(file).name, []).extend(rows)
    return by_file
