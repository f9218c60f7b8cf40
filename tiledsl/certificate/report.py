"""What a certificate says, as an object, as text for people and as JSON for machines.

Reading one loads nothing of the compiler: results that are recalled bring theirs along.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tiledsl.certificate.check import Check, Status
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.files import read_text, write_output

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

SCHEMA = 1
STATUSES: tuple[Status, ...] = get_args(Status)
# Kinds of checks, in the order of the report, and what people call them.
KINDS = {
    "pass": "passes",
    "source": "source",
    "bounds": "bounds",
    "race": "races",
    "read": "uninitialised reads",
}


@dataclass(frozen=True)
class Certificate:
    """What of a kernel's lowering is proved, tested, unknown and failed; see docs/verify.md for what that means.

    program, source: SHA-256 of the elaborated program's IR text and of the emitted source (without the comments that
    say where lines come from). tiledsl, compiler, triton: versions, and a hash of the compiler's sources in a checkout.
    date: UTC, ISO 8601. seconds: what the checks took.
    """

    kernel: str
    target: str
    checks: tuple[Check, ...]
    program: str
    source: str
    tiledsl: str
    compiler: str
    triton: str
    date: str
    seconds: float

    def of(self, status: Status) -> tuple[Check, ...]:
        """The checks with a status."""
        return tuple(each for each in self.checks if each.status == status)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that found something wrong."""
        return self.of("failed")

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; something may be unknown."""
        return not self.failed

    @property
    def summary(self) -> str:
        """`14 proved, 24 tested, 1 unknown, 0 failed`."""
        return ", ".join(f"{len(self.of(status))} {status}" for status in STATUSES)

    @property
    def reason(self) -> str:
        """The first thing that is wrong, in a line; empty if nothing is."""
        if self.ok:
            return ""
        first, more = self.failed[0], len(self.failed) - 1
        place = f"{first.place}: " if first.place else ""
        return f"{place}{first.subject}: {first.detail}" + (f" (and {more} more)" if more else "")

    # Which kernel it is of

    def stale(self, kernel: Kernel) -> str:
        """Why it is not a certificate of this kernel as it is now; empty if it is."""
        if self.kernel != kernel.name:
            return f"it is of {self.kernel}, not of {kernel.name}"
        if self.source != source_digest(kernel.source):
            return "its source is another one"
        return ""

    # Text

    def text(self, width: int = 60) -> str:
        """The report for people, in lines of at most this width: what is wrong comes first, then what is open."""
        lines = textwrap.wrap(f"{self.kernel} for {self.target}: {self.summary}", width)
        for status in ("failed", "unknown"):
            for each in self.of(status):
                lines += ["", *_wrapped(f"{status}: {each.subject}", width, "")]
                lines += _wrapped(each.place, width) + _wrapped(each.detail, width)
        for status in ("tested", "proved"):
            for kind, name in KINDS.items():
                checks = [each for each in self.of(status) if each.kind == kind]  # type: ignore[arg-type]
                if checks:
                    lines += ["", *_wrapped(f"{status}, {name} ({len(checks)}):", width, "")]
                    for detail, subjects in _by_detail(checks).items():
                        lines += _wrapped("; ".join(subjects) + (f": {detail}" if detail else ""), width)
        lines += [
            "",
            *_wrapped(f"{self.date}, {self.seconds:.2f} s, tiledsl {self.tiledsl}, Triton {self.triton}", width, ""),
        ]
        lines += [f"program {self.program[:16]}, source {self.source[:16]}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    # JSON

    def data(self) -> dict[str, Any]:
        """The certificate as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "checks"}
        return {"schema": SCHEMA, **values, "checks": [asdict(each) for each in self.checks]}

    def to_json(self) -> str:
        """The certificate as JSON text; `from_json` reads it back."""
        return json.dumps(self.data(), indent=1) + "\n"

    @classmethod
    def from_data(cls, data: Any) -> Certificate:
        """The certificate of JSON values. TileError says what is wrong with them."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise TileError(f"this is no certificate of schema {SCHEMA}")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = data.get(field.name)
            right = isinstance(value, list) if field.name == "checks" else isinstance(value, str)
            if field.name == "seconds":
                right = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not right:
                raise TileError(f"the certificate's {field.name} is {str(value)[:40]!r}")
            values[field.name] = value
        return cls(**{**values, "checks": tuple(map(_check, values["checks"]))})

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate of a JSON text. TileError says what is wrong with it."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TileError(f"the certificate is not JSON: {error}") from None
        return cls.from_data(data)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON text to a file. Raises OSError."""
        return write_output(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str], kernel: Kernel | None = None) -> Certificate:
        """The certificate in a file; with a kernel, TileError unless it is this kernel's, source and all."""
        found = cls.from_json(read_text(path))
        why = "" if kernel is None else found.stale(kernel)
        if why:
            raise TileError(f"the certificate in {os.fspath(path)} does not count: {why}", notes=["verify it again"])
        return found


def _check(data: Any) -> Check:
    names = [each.name for each in fields(Check)]
    if not isinstance(data, Mapping) or not all(isinstance(data.get(name), str) for name in names):
        raise TileError(f"a check of the certificate is {str(data)[:60]!r}")
    if data["status"] not in STATUSES or data["kind"] not in KINDS:
        raise TileError(f"a check of the certificate is {data['kind'][:20]!r}, {data['status'][:20]!r}")
    return Check(**{name: data[name] for name in names})


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ") if text else []


def _by_detail(checks: Sequence[Check]) -> dict[str, list[str]]:
    """Subjects with one detail, equal ones counted."""
    found: dict[str, dict[str, int]] = {}
    for each in checks:
        subjects = found.setdefault(each.detail, {})
        subjects[each.subject] = subjects.get(each.subject, 0) + 1
    return {detail: list(_counted(subjects)) for detail, subjects in found.items()}


def _counted(subjects: Mapping[str, int]) -> Iterator[str]:
    for subject, count in subjects.items():
        yield subject if count == 1 else f"{subject} ({count})"
