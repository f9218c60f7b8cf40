"""What is known of a kernel's files: its arguments and what it was compiled for, which its launch depends on."""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.target import Target
from tiledsl.strict_json import NONSENSE, parse

SCHEMA = "tiledsl levels 1"
NEEDED = ("shared", "num_warps")
"""Metadata that no level below ttgir says itself."""
_SHOWN_FIRST = ("name", "target", "triton_version", "num_warps", "num_stages", "num_ctas", "shared")
_LANGUAGES = ("triton", "gluon")
_AGAIN = "save_levels() writes such a file"
# Of this machine and of one compilation.
_LEFT_OUT = ("hash", "ir_override", "extern_libs", "instrumentation_mode")
_OWN = ("schema", "language", "options", "arguments", "parameter_bytes", "source_sha256", "files")
_TRITON_RUNNER = {"D": {"tt.divisibility": 16}, "S": {"tt.pointer_range": 32}}


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel. `type` is Triton's name ("*fp16", "i32", "constexpr"); `value` a constant's, as
    `encoded`; `attributes` what the compiler took for granted of it, as MLIR names it ("tt.divisibility": 16)."""

    name: str
    type: str
    value: Any = None
    attributes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_constant(self) -> bool:
        return self.type == "constexpr"

    def __str__(self) -> str:
        if self.is_constant:
            return f"{self.name}={self.value}"
        known = "".join(f", {name.removeprefix('tt.')} {value}" for name, value in self.attributes.items())
        return f"{self.name}: {self.type}{known}"


@dataclass(frozen=True)
class Record:
    """A kernel's metadata. `metadata` is Triton's; `options` what Triton was told; `parameter_bytes` the sizes of the
    binary's parameters; `source` the digest of the module's text; `files` the SHA-256 of each level's file.

    `arguments` is None where nothing says what they are.
    """

    name: str
    target: Target | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Argument, ...] | None = None
    parameter_bytes: tuple[int, ...] | None = None
    language: str = "triton"
    source: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def triton_version(self) -> str:
        return str(self.metadata.get("triton_version") or "")

    def text(self) -> str:
        """As the JSON file says it: a line for each entry, and for each argument."""
        described = [
            {
                "name": each.name,
                "type": each.type,
                **({"value": each.value} if each.is_constant else {}),
                **({"attributes": dict(each.attributes)} if each.attributes else {}),
            }
            for each in self.arguments or ()
        ]
        shown = None if self.arguments is None else described
        found = {name: value for name, value in self.metadata.items() if name not in _LEFT_OUT}
        values = {**{name: found.pop(name, None) for name in _SHOWN_FIRST}, "name": self.name}
        own = (SCHEMA, self.language, self.options, shown, self.parameter_bytes, self.source, self.files)
        values |= {**dict(zip(_OWN, own, strict=True)), **found}
        return (
            "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(name, value)}" for name, value in values.items()) + "\n}\n"
        )


def _lines(name: str, value: Any) -> str:
    if name == "arguments" and value:
        return "[\n" + ",\n".join(f"  {json.dumps(each, allow_nan=False)}" for each in value) + "\n]"
    return json.dumps(value, default=vars, allow_nan=False)


def parsed(text: str | bytes, where: str) -> Record:
    """The record in a JSON file: as `Record.text` writes it, or Triton Runner, or Triton in its cache (which does not
    say what the arguments are). TileError if it makes no sense; `where` names the file."""
    try:
        values = parse(text)
        if not isinstance(values, dict):
            raise ValueError(f"it is a {type(values).__name__}, not an object with entries")
        schema = values.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise ValueError(f"it has the schema {schema!r}, and this version knows {SCHEMA!r}")
        if not re.fullmatch(r"[\w.$-]+", str(values["name"])):
            raise ValueError(f"{values['name']!r} is no name of a kernel")
        if values.get("language", "triton") not in _LANGUAGES:
            raise ValueError(f"it has the language {values['language']!r}, which is none of {', '.join(_LANGUAGES)}")
        metadata = {name: value for name, value in values.items() if name not in _OWN}
        options = dict(values["options"]) if "options" in values else metadata
        for key in (*metadata, *options):
            if not re.fullmatch(r"[a-zA-Z]\w*", key, re.ASCII) or keyword.iskeyword(key):
                raise ValueError(f"{key!r} is no name of an entry")  # Triton makes fields of them
        if "kernel_signature" in values:
            arguments: tuple[Argument, ...] | None = _of_triton_runner(values["kernel_signature"])
        else:
            found = values.get("arguments")
            arguments = None if found is None else tuple(map(_argument, found))
        sizes = values.get("parameter_bytes")
        return Record(
            str(values["name"]),
            _target(values.get("target")),
            metadata,
            options,
            arguments,
            None if sizes is None else tuple(map(int, sizes)),
            str(values.get("language", "triton")),
            str(values.get("source_sha256", "")),
            {str(level): str(digest) for level, digest in values.get("files", {}).items()},
        )
    except TileError as error:
        raise TileError(f"{where} does not describe a kernel: {error.message}", notes=error.notes) from None
    except (*NONSENSE, AttributeError, SyntaxError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, (TypeError, AttributeError)):
            reason = f"an entry has another type than save_levels() gives it ({error})"
        raise TileError(f"{where} does not describe a kernel: {reason}", notes=[_AGAIN]) from None


def _target(described: Any) -> Target | None:
    if described is None:
        return None
    return Target.parse({"kind": described["backend"], "arch": described["arch"]})


def _argument(described: Mapping[str, Any]) -> Argument:
    name, kind = described["name"], described["type"]
    if not isinstance(name, str) or not isinstance(kind, str):
        raise ValueError(f"{name!r} of type {kind!r} is no argument")
    attributes = {str(key): int(value) for key, value in described.get("attributes", {}).items()}
    return Argument(name, kind, described.get("value"), attributes)


def _of_triton_runner(signature: str) -> tuple[Argument, ...]:
    """Tuples of name, type, value or specialisation and, from some versions, whether it was given by keyword."""
    arguments = []
    for name, kind, fact, *_ in ast.literal_eval(signature):
        if kind == "constexpr":
            arguments.append(Argument(name, kind, encoded(fact)))
        else:
            attributes = {key: value for letter in fact or "" for key, value in _TRITON_RUNNER[letter].items()}
            arguments.append(Argument(name, kind, None, attributes))
    return tuple(arguments)


def encoded(value: Any) -> Any:
    """A constant as JSON has it, the same for the same constant."""
    kind = type(value).__name__
    if kind == "constexpr":
        return encoded(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    if hasattr(value, "cache_key"):
        return {"function": getattr(value, "__name__", kind), "cache_key": value.cache_key}
    return {kind: str(value)}


def arguments_of(
    names: Sequence[str], types: Mapping[str, str], constants: Mapping[Any, Any], facts: Mapping[Any, Any]
) -> tuple[Argument, ...]:
    """The arguments of an ASTSource of Triton's: types by name, constants and attributes by path."""
    arguments = []
    for number, name in enumerate(names):
        if types[name] == "constexpr":
            arguments.append(Argument(name, "constexpr", encoded(constants.get((number,)))))
        else:
            arguments.append(Argument(name, str(types[name]), None, dict(facts.get((number,), ()))))
    return tuple(arguments)


def refusal(recorded: Sequence[Argument], launched: Sequence[Argument]) -> str:
    """Why a kernel compiled for `recorded` must not be launched with `launched`; "" if it may.

    It may if types and constants are the same, and all that was taken for granted holds.
    """
    if [each.name for each in recorded] != [each.name for each in launched]:
        return (
            f"it was compiled for the arguments {', '.join(each.name for each in recorded)}, "
            f"and the call has {', '.join(each.name for each in launched)}"
        )
    for ours, theirs in zip(recorded, launched, strict=True):
        reason = _refusal(ours, theirs)
        if reason:
            return reason
    return ""


def _refusal(recorded: Argument, launched: Argument) -> str:
    name = recorded.name
    if recorded.is_constant:
        same = launched.is_constant and _same(recorded.value, launched.value)
        given = f"{launched.value!r}" if launched.is_constant else f"an argument of type {launched.type}"
        return "" if same else f"it was compiled for {name}={recorded.value!r}, and the call has {given}"
    is_one = launched.is_constant and type(launched.value) is int and launched.value == 1
    if not (is_one and re.fullmatch(r"[iu]\d+", recorded.type)) and not _fits(launched.type, recorded.type):
        given = f"the constant {launched.value!r}" if launched.is_constant else launched.type
        return f"it was compiled for {name} of type {recorded.type}, and the call has {given}"
    for fact, value in recorded.attributes.items():
        if launched.attributes.get(fact, 1 if fact == "tt.divisibility" else None) != value:
            what = f"that is a multiple of {value}" if fact == "tt.divisibility" else f"with {fact} = {value}"
            what += " bytes" if fact == "tt.divisibility" and recorded.type.startswith("*") else ""
            kind = "an address" if recorded.type.startswith("*") else "a number"
            return f"it was compiled for {name} being {kind} {what}, and in the call it is none"
    return ""


def _same(recorded: Any, launched: Any) -> bool:
    return type(recorded) is type(launched) and bool(recorded == launched)


def _fits(launched: str, recorded: str) -> bool:
    plain = [kind.replace(" ", "") for kind in (launched, recorded)]
    return plain[0] == plain[1] or plain == ["i32", "i64"]
