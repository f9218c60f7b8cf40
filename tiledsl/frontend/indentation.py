"""Between lexer and parser: newlines, indents and dedents, bracket matching, and words that the language refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lark import Token
from lark.lark import PostLex

from tiledsl.errors import TileError
from tiledsl.location import Loc

MAX_BRACKETS = 200
MAX_BLOCKS = 100
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_LEADING = re.compile(r"[ \t\f]*(?=[^ \t\f\n#])")
_INSTEAD = {
    "class": "define classes outside and use their instances",
    "try": "check with `if` or `assert`, or move it into a host function that the kernel calls",
    "except": "there is no `try` to end",
    "finally": "there is no `try` to end",
    "async": "use a plain `def`, `for` or `with`",
    "await": "call a plain function",
    "yield": "return the values in a tuple, or use `@T.macro`",
    "del": "let the name go out of use",
}


def token_loc(file: str, token: Any) -> Loc:
    return Loc(file, token.line, token.column, token.end_line, token.end_column)


class LineStructure(PostLex):
    """Rewrites the token stream as Python's tokenizer would: no newlines in brackets, indents and dedents outside.

    One instance serves one parser; the fields are set anew before each parse, while `process` keeps its own state in
    locals because an f-string's inner expressions are parsed while the outer stream is still open.
    """

    always_accept = ("_NEWLINE", "REFUSED", "COMPLEX")

    file: str
    text: str
    line_shift: int
    column_shift: int
    one_expression: bool
    keeps_indent: bool

    def __init__(self) -> None:
        self.open_brackets: list[Token] = []

    def loc(self, token: Token) -> Loc:
        """The range of a token."""
        return token_loc(self.file, token)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        line_shift, column_shift, one_expression = self.line_shift, self.column_shift, self.one_expression
        brackets: list[Token] = []
        self.open_brackets = brackets
        levels = [] if one_expression else [self._first_indent()]
        at_start = True
        last: Token | None = None
        for token in stream:
            kind = token.type
            if line_shift or column_shift:
                _shift(token, line_shift, column_shift)
            if kind == "_NEWLINE":
                if brackets or one_expression:
                    continue
                indent = token[token.rindex("\n") + 1 :]
                if not at_start:
                    yield token
                last = token
                if "#" not in indent:  # a comment there means that the text ends with it
                    yield from self._change_level(token, indent, levels)
                continue
            at_start = False
            if kind in ("LPAR", "LSQB", "LBRACE"):
                brackets.append(token)
                if len(brackets) > MAX_BRACKETS:
                    raise TileError(f"more than {MAX_BRACKETS} brackets are open at once", self.loc(token))
            elif kind in ("RPAR", "RSQB", "RBRACE"):
                if not brackets:
                    raise TileError(f"'{token}' closes nothing: no bracket is open here", self.loc(token))
                opener = brackets.pop()
                if _CLOSERS[opener] != token:
                    note = (f"'{opener}' was opened", self.loc(opener))
                    raise TileError(f"'{token}' does not close '{opener}'", self.loc(token), [note])
            elif kind == "REFUSED":
                message = f"'{token}' is not part of the tile language; {_INSTEAD[token]}"
                raise TileError(message, self.loc(token), code="not-in-language")
            elif kind == "COMPLEX":
                message = f"complex numbers such as {shortened(token)} are not part of the tile language"
                raise TileError(message, self.loc(token), code="not-in-language")
            yield token
            last = token
        if brackets:
            raise TileError(f"'{brackets[-1]}' was never closed", self.loc(brackets[-1]))
        if one_expression or last is None:
            return
        if last.type != "_NEWLINE":
            yield _at_end("_NEWLINE", last)
        for _ in levels[1:]:
            yield _at_end("_DEDENT", last)

    def _first_indent(self) -> tuple[int, int]:
        match = _LEADING.match(self.text)
        widths = _widths(match.group() if match else "")
        if match and widths[0] and not self.keeps_indent:
            raise TileError("the first line is indented", Loc(self.file, 1, 1, 1, match.end() + 1))
        return widths

    def _change_level(self, newline: Any, indent: str, levels: list[tuple[int, int]]) -> Iterator[Token]:
        width, narrow = _widths(indent)
        line, end = newline.end_line, newline.end_column
        here = Loc(self.file, line, 1, line, max(end, 2))
        top_width, top_narrow = levels[-1]
        if width > top_width:
            if narrow <= top_narrow:
                raise TileError("tabs and spaces are mixed in this line's indentation", here)
            if len(levels) > MAX_BLOCKS:
                raise TileError(f"blocks are nested more than {MAX_BLOCKS} deep", here)
            levels.append((width, narrow))
            yield Token("_INDENT", indent, line=line, column=1, end_line=line, end_column=end)
            return
        while width < levels[-1][0]:
            levels.pop()
            if not levels:
                raise TileError("this line is indented less than the first one", here)
            yield Token("_DEDENT", indent, line=line, column=1, end_line=line, end_column=end)
        if width != levels[-1][0]:
            raise TileError("this line's indentation matches no block that it could belong to", here)
        if narrow != levels[-1][1]:
            raise TileError("tabs and spaces are mixed in this line's indentation", here)


def _widths(indent: str) -> tuple[int, int]:
    """Columns of an indentation with tabs every 8 columns, and with tabs as one: lines must agree in both."""
    indent = indent[indent.rfind("\f") + 1 :]
    return len(indent.expandtabs(8)), len(indent)


def _shift(token: Any, lines: int, columns: int) -> None:
    if token.line == 1:
        token.column += columns
    if token.end_line == 1:
        token.end_column += columns
    token.line += lines
    token.end_line += lines


def _at_end(kind: str, last: Token) -> Token:
    line, column = last.end_line, last.end_column
    return Token(kind, "", line=line, column=column, end_line=line, end_column=column)


def shortened(token: str) -> str:
    """The first line of a token's text, as long as fits into a message."""
    line = token.partition("\n")[0]
    return line if len(line) <= 30 else line[:27] + "..."
