"""`python -m docs.site FOLDER` writes the pages of the site there, as Markdown; mkdocs makes HTML of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.site import reference
from docs.site.entries import ROOT
from docs.site.repository import Pages
from tiledsl.mistakes import PAGE


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Place and text of every page."""
    language = reference.Language()
    manual = Pages(language.places)
    yield from manual.manual()
    yield from language.texts()
    yield "reference/refused.md", reference.refused()
    yield "reference/passes.md", reference.passes()
    yield "reference/operations.md", reference.operations()
    yield "reference/mistakes.md", PAGE.read_text()
    yield "reference/command-line.md", reference.command_line()
    yield "reference/tuner.md", reference.tuner()
    yield "reference/python.md", reference.python()
    yield from manual.sources()
    for name in ("iframe-worker.js", "site.css"):
        yield f"assets/{name}", (ROOT / "docs/site" / name).read_bytes()


def write(folder: Path) -> None:
    """The pages, as files in a folder of their own, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
