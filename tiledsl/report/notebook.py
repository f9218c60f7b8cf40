"""What notebooks show of objects: short pieces of HTML, for which nothing needs to be installed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiledsl.ir.pass_manager import Stage


def code(text: str) -> str:
    """A text as it is, in lines."""
    return f"<pre>{escape(text)}</pre>"


def folded(head: str, inner: str) -> str:
    """HTML behind a line of text, which a click opens."""
    return f"<details><summary>{escape(head)}</summary>{inner}</details>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts under their heads."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Stages(list["Stage"]):
    """The stages of a kernel, as a list that shows itself in lines."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        """Each stage's text behind its name; of those that changed nothing the name alone."""
        shown, before = [], None
        for stage in self:
            head = f"{stage.spec} ({stage.milliseconds:.2f} ms)"
            same = stage.text == before or stage.text is None
            shown.append(paragraph(f"{head}: no change") if same else folded(head, code(stage.text or "")))
            before = stage.text
        return "".join(shown)
