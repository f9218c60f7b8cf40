"""What comes from outside and stands in emitted text: names, strings, and what comments say.

Nothing else may: words of a closed set are checked by the operations' verifiers, numbers are numbers.
"""

from __future__ import annotations

import builtins
import keyword
import re
import string
import unicodedata

from tiledsl.launch_options import LAUNCH_OPTIONS

RESERVED = {
    *keyword.kwlist, *dir(builtins), "tl", "triton", "torch", "libdevice", "gdc_wait", "gdc_launch_dependents",
    "match", "case", "type",
}  # fmt: skip

LAUNCH_NAMES = {
    *LAUNCH_OPTIONS, "enable_fp_fusion", "debug", "sanitize_overflow", "instrumentation_mode",
    "fpsan_homomorphic_casts", "options", "params", "specialization", "specialize_impl", "backend", "JITCallable",
}  # fmt: skip
"""Which a kernel's parameters cannot have: keywords of its launch, and names of the function that Triton binds them by
(`create_function_from_signature` in triton/runtime/jit.py)."""


class PythonNames:
    """Hands out names of one scope: a valid identifier each, and each once."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self._taken = set(taken or ())
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        base = unicodedata.normalize("NFKC", wanted)  # as Python reads it: two spellings may be one name
        if not base.isidentifier():
            base = "".join(each if f"x{each}".isidentifier() else "_" for each in base) or "x"
            base = base if base.isidentifier() else "_" + base
        if base in RESERVED or base.startswith("__"):
            base += "_"
        name, number = base, self._next.get(base, 1)
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._next[base] = number
        self._taken.add(name)
        return name


def quoted(text: str) -> str:
    """A string literal of ASCII in double quotes, which Python reads as this text."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """The text with escapes in place of what Triton's printing does not take."""
    return "".join(each if each in string.printable else ascii(each)[1:-1] for each in text)


def comment(text: str) -> str:
    """Text for a comment: one line that looks as it reads, and that names no encoding of the file."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return re.sub("coding(?=[:=])", "coding ", shown)
