"""Values of number and string tokens, and the parts of f-strings."""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Callable

from tiledsl.errors import TileError
from tiledsl.frontend.syntax import Expression, FormattedValue, JoinedString
from tiledsl.location import Loc

ParseInner = Callable[[str, int, int], Expression]
"""Parses an expression that stands at (line, column) of the file."""

_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]*\}|.)", re.DOTALL)
_STRING = re.compile(r"""('''|\"\"\"|'|")""")
_BASES = {"0x": 16, "0o": 8, "0b": 2}
_MAX_SPEC_DEPTH = 2


def number(text: str, loc: Loc) -> int | float:
    """The value of a number token: decimal, hexadecimal, octal, binary or floating point, with underscores."""
    base = _BASES.get(text[:2].lower())
    try:
        if base is not None:
            return int(text[2:].replace("_", ""), base)
        if not text.replace("_", "").isdigit():
            return float(text)
        value = int(text)
    except ValueError:
        raise TileError(f"this number has {len(text)} digits; write it in hexadecimal or compute it", loc) from None
    if text[0] == "0" and value:
        raise TileError(f"leading zeros are not allowed in the number {text}; octal numbers begin with 0o", loc)
    return value


def string(text: str, loc: Loc) -> str | bytes:
    """The value of one plain string token, prefix and quotes included."""
    prefix, body, _ = _split(text)
    is_bytes = "b" in prefix
    if is_bytes and not body.isascii():
        raise TileError("bytes can only contain ASCII characters; use escapes such as \\xff for others", loc)
    value = body if "r" in prefix else unescape(body, loc, is_bytes)
    return value.encode("latin-1") if is_bytes else value


def unescape(body: str, loc: Loc, is_bytes: bool = False) -> str:
    """Replace the backslash escapes in a string's body as Python does; unknown escapes stay as they are."""
    if "\\" not in body:
        return body

    def value(match: re.Match[str]) -> str:
        escape = match.group()
        with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unknown escapes
            found = ast.literal_eval(f'b"{escape}"' if is_bytes else f'"{escape}"')
            return found.decode("latin-1") if is_bytes else str(found)
        if len(escape) > 4 and escape.startswith("\\N"):
            raise TileError(f"there is no character named {escape[3:-1]!r}", loc)
        if escape[1] in "xuUN":
            raise TileError(f"the escape {escape[:2]} is incomplete or out of range", loc)
        return escape

    return _ESCAPE.sub(value, body)


def formatted_parts(text: str, loc: Loc, parse: ParseInner) -> list[str | FormattedValue]:
    """The literal text and the replacement fields of one f-string token; `parse` reads the fields' expressions."""
    prefix, body, start = _split(text)
    return _FormatScanner(text, start, start + len(body), "r" in prefix, loc, parse).parts(0)


def _split(text: str) -> tuple[str, str, int]:
    """Prefix in lower case, body, and where the body starts."""
    match = _STRING.search(text)
    assert match is not None
    quote = len(match.group())
    return text[: match.start()].lower(), text[match.end() : -quote], match.end()


class _FormatScanner:
    """Walks over one f-string token; positions in errors and nodes are those of the user's file."""

    def __init__(self, text: str, start: int, end: int, raw: bool, loc: Loc, parse: ParseInner) -> None:
        self.text, self.at, self.end = text, start, end
        self.raw, self.loc, self.parse = raw, loc, parse

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column in the file of an offset into the token."""
        *lines, last = self.text[:offset].split("\n")
        return self.loc.line + len(lines), len(last) + (1 if lines else self.loc.column)

    def range(self, start: int, end: int) -> Loc:
        return Loc(self.loc.file, *self.place(start), *self.place(end))

    def error(self, message: str, at: int) -> TileError:
        return TileError(f"f-string: {message}", self.range(at, min(at + 1, len(self.text))))

    def unclosed(self, at: int) -> TileError:
        error = self.error("'{' was never closed", at)
        error.notes.append("inside an f-string's braces, use other quotes than those around it")
        return error

    def parts(self, depth: int) -> list[str | FormattedValue]:
        """Text and fields up to the end of the string or, in a format specification (depth > 0), up to its '}'."""
        pieces: list[str | FormattedValue] = []
        literal: list[str] = []
        text, end = self.text, self.end

        def flush() -> None:
            if literal:
                body = "".join(literal)
                pieces.append(body if self.raw else unescape(body, self.loc))
                literal.clear()

        while self.at < end:
            char = text[self.at]
            doubled = text[self.at + 1] == char  # behind the last one is the end of the string or the field
            if char == "\\" and not self.raw:
                stop = self.at + 2
                if text.startswith("N{", self.at + 1):
                    name, closing, _ = text[self.at : end].partition("}")
                    stop = self.at + len(name + closing)
                elif text[self.at + 1] in "{}":
                    stop -= 1
                literal.append(text[self.at : stop] if stop > self.at + 1 else "\\\\")
                self.at = stop
            elif char in "{}" and doubled and not depth:
                literal.append(char)
                self.at += 2
            elif char == "{":
                if depth >= _MAX_SPEC_DEPTH:
                    raise self.error("format specifications are nested too deep", self.at)
                flush()
                self.field(pieces, depth)
            elif char == "}":
                if depth:
                    break
                raise self.error("a single '}' is not allowed; write '}}' for the character", self.at)
            else:
                literal.append(char)
                self.at += 1
        flush()
        return pieces

    def field(self, pieces: list[str | FormattedValue], depth: int) -> None:
        """Read `{expression [=] [!conversion] [:format]}` and append it (for `=`, its text before it)."""
        opened = self.at
        start = opened + 1
        stop = self.expression_end(start)
        if stop == self.end:
            raise self.unclosed(opened)
        if not self.text[start:stop].strip():
            raise self.error("an expression is missing between the braces", opened)
        value = self.parse(self.text[start:stop], *self.place(start))
        self.at = stop
        debug = self.peek() == "="
        if debug:
            self.at += 1
            while self.peek().isspace():
                self.at += 1
            pieces.append(self.text[start : self.at])
        conversion = ""
        if self.peek() == "!":
            conversion = self.text[self.at + 1]
            if conversion not in "rsa":
                raise self.error("the conversion after '!' must be r, s or a", self.at)
            self.at += 2
        spec: JoinedString | None = None
        if self.peek() == ":":
            self.at += 1
            begin = self.at
            parts = self.parts(depth + 1)
            spec = JoinedString(self.range(begin, self.at), tuple(parts))
        if self.peek() != "}":
            if self.peek():
                raise self.error("expected '}' here", self.at)
            raise self.unclosed(opened)
        self.at += 1
        if debug and not conversion and spec is None:
            conversion = "r"
        pieces.append(FormattedValue(self.range(opened, self.at), value, conversion, spec))

    def peek(self) -> str:
        return self.text[self.at] if self.at < self.end else ""

    def expression_end(self, at: int) -> int:
        """The offset of the '=', '!', ':' or '}' that ends the expression that starts at `at`."""
        text, depth = self.text, 0
        while at < self.end:
            char = text[at]
            if char in "'\"":
                at = self.skip_string(at)
                continue
            if char in "([{":
                depth += 1
            elif depth and char in ")]}":
                depth -= 1
            elif not depth and char in "}:":
                return at
            elif not depth and char in "!=<>" and text[at + 1] == "=":  # behind the last one is the end of the string
                at += 1
            elif not depth and char in "=!":
                return at
            at += 1
        return at

    def skip_string(self, at: int) -> int:
        quote = self.text[at] * 3 if self.text.startswith(self.text[at] * 3, at) else self.text[at]
        stop = self.text.find(quote, at + len(quote), self.end)
        if stop < 0:
            raise self.error("this string is not closed", at)
        return stop + len(quote)
