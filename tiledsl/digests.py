"""Digests of texts and files, by which what was made of them is found again."""

from __future__ import annotations

import hashlib
import re

OPAQUE = "opaque:"  # stands in a text for something whose behaviour no text can tell
_ORIGIN = re.compile(r"^ *# .+:\d+\n", re.MULTILINE)


def digest(content: str | bytes) -> str:
    """The SHA-256 of a text or of bytes, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def short_digest(content: str) -> str:
    """The first 24 digits of a text's digest: 96 bits, which tell all apart that one cache holds."""
    return digest(content)[:24]


def source_digest(source: str) -> str:
    """The digest of emitted source but for the comments that say which line of the user's file something comes from:
    a program that moves in its file, or to another one, stays the same."""
    return digest(_ORIGIN.sub("", source))
