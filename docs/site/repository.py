"""The repository's own texts as pages: where each stands in the site, and its links brought there."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from docs.site.entries import ROOT
from docs.site.markdown import code

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LEXERS = {".py": "python", ".tile": "python", ".md": "markdown", ".json": "json", "": "text"}


def place(path: str) -> str:
    """Where a file or folder of the repository stands in the site: docs/x.md is x.md, other texts keep their folders.

    What is no Markdown becomes a page with its text; a folder, one with its files.
    """
    if path == "docs/README.md":
        return "index.md"
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/")
    if path.endswith((".svg", ".png")):
        return path
    if path.endswith(".md"):
        return path.replace("README.md", "overview.md").lower()
    path = f"{path}/index" if (ROOT / path).is_dir() else path
    return "source/" + re.sub(r"(^|/)\.", r"\1", path) + ".md"  # mkdocs leaves out what begins with a dot


class Pages:
    """The pages that are made of the repository's texts, and of the files that these link to."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names  # the pages of T's names, by names
        self.wanted: set[str] = set()

    def manual(self) -> Iterator[tuple[str, str]]:
        """Place and text of every page of the manual, and of what stands at the top of the repository."""
        texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/results/README.md"]
        for file in texts:
            path = file.relative_to(ROOT).as_posix()
            yield place(path), self.brought(path, file.read_text(encoding="utf-8"))

    def sources(self) -> Iterator[tuple[str, str | bytes]]:
        """Place and text of what the manual links to and is not a page of it."""
        done: set[str] = set()
        while left := sorted(self.wanted - done):
            for path in left:
                done.add(path)
                yield place(path), self._source(path)

    def _source(self, path: str) -> str | bytes:
        file = ROOT / path
        if path.endswith((".svg", ".png")):
            return file.read_bytes()
        title = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
        if not file.is_dir():
            return title + code(file.read_text(encoding="utf-8"), _LEXERS.get(file.suffix, "text")) + "\n"
        rows = []
        for each in sorted(file.rglob("*.py")):
            inner = each.relative_to(ROOT).as_posix()
            if each.name != "__init__.py":
                self.wanted.add(inner)
                first = (ast.get_docstring(ast.parse(each.read_text(encoding="utf-8"))) or "").split("\n")[0]
                rows.append(f"| [{each.relative_to(file)}]({self._link(path, inner)}) | {first} |")
        return title + "\n".join(["| file | |", "| --- | --- |", *rows]) + "\n"

    def brought(self, path: str, text: str) -> str:
        """The text of a page with its links brought to where the site has what they lead to."""
        folder = posixpath.dirname(path)
        names = re.compile(rf"(?<![\[`])`T\.({'|'.join(sorted(self.names, key=len, reverse=True))})`(?!\])")

        def link(found: re.Match[str]) -> str:
            target, _, anchor = found[2].partition("#")
            if not target or "://" in target:
                return found[0]
            inner = posixpath.normpath(posixpath.join(folder, target))
            if not inner.endswith(".md"):
                self.wanted.add(inner)
            return found[1] + self._link(path, inner) + (f"#{anchor}" if anchor else "") + found[3]

        def name(found: re.Match[str]) -> str:
            return f"[`T.{found[1]}`]({relative(place(path), self.names[found[1]])})"

        parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(
            _code(part) if part.startswith("```") else names.sub(name, _LINK.sub(link, part)) for part in parts
        )

    def _link(self, path: str, other: str) -> str:
        return relative(place(path), place(other))


def _code(block: str) -> str:
    """A block as it is, but that what commands print is not coloured: lines of IR begin with %, as some prompts do."""
    return re.sub(r"\A```console", "```text", block)


def relative(page: str, other: str) -> str:
    return Path(os.path.relpath(other, posixpath.dirname(page) or ".")).as_posix()
