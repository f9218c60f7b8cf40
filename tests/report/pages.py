"""Pages that tests draw: all that can be on one, with a text in each place."""

from __future__ import annotations

from html.parser import HTMLParser

from tiledsl.report.page import (
    Cell,
    Certified,
    Entry,
    Fact,
    Group,
    Page,
    ProgramPart,
    Step,
    TuningPart,
)
from tiledsl.report.sides import Line, Place, Quoted, Row


def full_page(text: str, tuned: bool = True) -> Page:
    """A page on which each text that may come from outside is this one."""
    line = Line(text, Place(text, 3, 3))
    rows = [Row("gap"), Row("same", line, line), Row("changed", line, line), Row("changed", line), Row("changed", None, line)]  # fmt: skip # noqa: E501
    fact = Fact(text, text, text)
    program = ProgramPart(
        text, [fact], [text], {text: [Quoted(3, text), Quoted(None), Quoted(7, text)]}, [Step(text, 0.5, rows)], [text],
        text, Certified(False, text, text), text,
    )  # fmt: skip
    point = {
        "config": text, "label": text, "status": text, "values": {text: text}, "wins": True, "rank": 1, "ms": 1.0,
        "tflops": 2.0, "axes": [text], "keys": [text, text],
    }  # fmt: skip
    other = {**point, "values": {text: "2"}, "wins": False, "rank": 2, "ms": 2.0}
    entries = [
        Entry(text, True, [Cell(text, text), Cell(text, 1)], {text: text}, point),
        Entry("ok", False, [Cell("x", "x"), Cell("y", 2)], {text: "2"}, other),
    ]
    roof = {"tera": 4.0, "dram": 1.0, "intensity": 2.0, "name": text, "note": text}
    group = Group(text, text, [text, text])
    plots = {"axes": ["rank", text], "reference": 3.0, "roofline": roof}
    tuning = TuningPart([fact], text, [text, "b"], [False, True], entries, [group], [group], plots)
    return Page(text, text, program, tuning if tuned else None)


class Read(HTMLParser):
    """What a browser's parser sees: the elements with their attributes, texts, and the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)
