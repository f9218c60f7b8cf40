"""The IR stays small enough to be read in one sitting."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

IR = Path(__file__).resolve().parents[2] / "tiledsl" / "ir"
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(path: Path) -> int:
    """Lines that are not blank, comment, docstring or import."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_lines_of_code() -> None:
    sizes = {path.name: lines_of_code(path) for path in sorted(IR.glob("*.py"))}
    assert sizes and sum(sizes.values()) < 1000, sizes
