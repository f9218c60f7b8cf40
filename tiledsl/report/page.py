"""What is on a page, as plain data, and the HTML of it.

A page is one file: its style, its script and what draws the plots are in it, and it may load nothing. Text from outside
is escaped where it is put in; should that ever fail, the page's policy runs no script but its own, known by a hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError
from tiledsl.files import write_output, writing
from tiledsl.report.sides import Quoted, Row
from tiledsl.version import __version__

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fact:
    """A number or a word that answers a question, what it is, and what is to be said of it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Step:
    """A pass that changed something: its spec, its milliseconds and what it changed."""

    spec: str
    milliseconds: float
    rows: Sequence[Row]


@dataclass(frozen=True)
class Certified:
    """What was proved and tested of a kernel: a line, and the report."""

    ok: bool
    summary: str
    text: str


@dataclass(frozen=True)
class ProgramPart:
    """A program and its lowering. quoted: by file, the user's lines; unchanged: passes that changed nothing."""

    source: str
    facts: Sequence[Fact] = ()
    remarks: Sequence[str] = ()
    quoted: Mapping[str, Sequence[Quoted]] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    unchanged: Sequence[str] = ()
    schedule: str = ""
    certificate: Certified | None = None
    problem: str = ""  # why there are no steps


@dataclass(frozen=True)
class Group:
    """Configurations that failed alike: the first one's message, and all of them as text."""

    status: str
    message: str
    configs: Sequence[str]


@dataclass(frozen=True)
class Cell:
    """What a table shows, and by what it is sorted (None: it comes last)."""

    text: str
    key: float | str | None


@dataclass(frozen=True)
class Entry:
    """A configuration's row. values: of the tunables, as text; point: what the plots need of it."""

    status: str
    wins: bool
    cells: Sequence[Cell]
    values: Mapping[str, str]
    point: Mapping[str, Any]


@dataclass(frozen=True)
class TuningPart:
    """What a tuning tried. heads: of the table's columns, of which `numeric` are numbers; plots: what the page's
    script draws, as JSON values."""

    facts: Sequence[Fact]
    explanation: str
    heads: Sequence[str]
    numeric: Sequence[bool]
    entries: Sequence[Entry]
    failures: Sequence[Group] = ()
    untried: Sequence[Group] = ()
    plots: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """All of it. tuning: None for a kernel that was not chosen among others; program: None for a Python function."""

    title: str
    subtitle: str
    program: ProgramPart | None
    tuning: TuningPart | None = None


def write(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page in one step; the path. TileError where a library is missing or the file cannot be written."""
    text = render(page)
    with writing(path):
        return write_output(path, text.encode(errors="backslashreplace"))  # an error's text may hold half a character


def check_installed() -> None:
    """TileError where a library is missing that draws pages."""
    _template()
    _plotting()


def render(page: Page) -> str:
    """The HTML. TileError where a library is missing that draws it."""
    scripts = [_text("page.js")]
    if page.tuning is not None:
        scripts.insert(0, _plotting())
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    policy = " ".join(f"'sha256-{each}'" for each in hashes)
    html: str = _template().render(
        page=page, version=__version__, style=_text("page.css"), scripts=scripts, policy=policy,
        tunables=_tunables(page.tuning),
    )  # fmt: skip
    return html


def _tunables(tuning: TuningPart | None) -> dict[str, list[str]]:
    """The tunables that are worth a choice: those with several values, but not a great many."""
    found: dict[str, dict[str, None]] = {}
    for entry in tuning.entries if tuning else ():
        for name, value in entry.values.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items() if 1 < len(values) <= 16}


@functools.cache
def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise _missing("jinja2") from error
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


@functools.cache
def _plotting() -> str:
    """plotly.js, as plotly ships it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise _missing("plotly") from error
    script: str = get_plotlyjs()
    assert "</script" not in script.lower(), "plotly.js can stand inside of a page"
    return script


def _missing(name: str) -> TileError:
    return TileError(f"reports need {name}, which is not installed", notes=["pip install 'tiledsl[report]'"])


@functools.cache
def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
