"""Whether a level's file is of the kernel that it is to stand for. What does not fit is an error, no wrong result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tiledsl.errors import TileError
from tiledsl.levels.metadata import Facts, expected_bytes, expected_types, read, same_parameters
from tiledsl.levels.record import NEEDED, Argument, Record
from tiledsl.runtime.target import Target

ALLOWED = ("source", "triton_version")
"""What `allow` may waive."""
_LAUNCHED_WITH = (
    "num_ctas", "global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align",
)  # fmt: skip
_ANY_TARGET = ("ttir",)
_ANY_VERSION = ("ttir", "ttgir")  # parsed and verified by Triton itself


def check_allow(allow: Collection[str]) -> frozenset[str]:
    """`allow` as a set. TileError for what cannot be waived."""
    given = [allow] if isinstance(allow, str) else list(allow) if isinstance(allow, Collection) else [allow]
    unknown = [each for each in given if each not in ALLOWED]
    if unknown:
        raise TileError(f"allow names {unknown[0]!r}", notes=[f"it takes {' and '.join(map(repr, ALLOWED))}"])
    return frozenset(given)


def facts_of(what: str, level: str, data: str | bytes, target: Target) -> Facts:
    """What a level's file says of itself; `what` names it in errors. TileError if it is no file of that level."""
    try:
        return read(level, data, target.warp_size)
    except ValueError as error:
        raise TileError(f"{what} is no {level} of a kernel: {error}") from None


def checked(
    what: str, level: str, facts: Facts, record: Record, target: Target, allow: Collection[str]
) -> tuple[Record, list[str]]:
    """The record for this file, and remarks on what it says otherwise. Raises TileError for what does not fit.

    Alignments that the file takes for granted and the record does not have are added: launches are held to them.
    """
    _check_name(what, facts, record)
    _check_target(what, level, facts, record, target)
    remarks = _check_version(what, level, record, allow)
    if record.target not in (None, target):
        remarks.append(f"{what} was made for {record.target}, and is compiled for {target}")
    if level not in ("ttir", "ttgir"):
        _check_metadata(what, level, facts, record, target)
    else:
        # The metadata counts the warps that Triton adds for specialised parts, too.
        told = record.options.get("num_warps", record.metadata.get("num_warps"))
        if facts.warps is not None and told not in (None, facts.warps):
            remarks.append(f"{what} has {facts.warps} warps, where its metadata says {told}")
    if record.arguments is not None:
        record = _check_parameters(what, facts, record)
    return record, remarks


def _check_name(what: str, facts: Facts, record: Record) -> None:
    if facts.name is not None and facts.name != record.name:
        raise TileError(
            f"{what} has the kernel {facts.name}, not {record.name}",
            notes=["a level stands for the kernel of its own name; rename it in the file if that is what it is"],
        )


def _check_target(what: str, level: str, facts: Facts, record: Record, target: Target) -> None:
    said = facts.target if facts.target is not None else None if record.target is None else str(record.target)
    if said is None or said == str(target) or level in _ANY_TARGET:
        return
    raise TileError(
        f"{what} is for {said}, and the kernel for {target}",
        notes=[f"save the levels for {target}, or begin with the ttir, which suits any GPU"],
    )


def _check_version(what: str, level: str, record: Record, allow: Collection[str]) -> list[str]:
    import triton

    here, there = str(triton.__version__), record.triton_version
    if there in ("", here):
        return []
    if level in _ANY_VERSION or "triton_version" in allow:
        return [f"{what} was made by Triton {there}, and here is {here}"]
    raise TileError(
        f"{what} was made by Triton {there}, and here is {here}: what a launch hands over may differ",
        notes=["save the levels with this Triton", "if you know that it fits: allow=['triton_version']"],
    )


def _check_metadata(what: str, level: str, facts: Facts, record: Record, target: Target) -> None:
    missing = next((name for name in NEEDED if not isinstance(record.metadata.get(name), int)), None)
    if missing is not None:
        given = record.metadata.get(missing)
        instead = "" if given is None else f" that is an integer but {given!r}"
        raise TileError(
            f"{what}: its metadata has no {missing!r}{instead}, which no {level} says itself",
            notes=["put the JSON file that was saved with it beside it"],
        )
    told = {name: record.metadata[name] for name in _LAUNCHED_WITH if name in record.metadata}
    unfit = next((name for name, value in told.items() if not isinstance(value, int)), None)
    if unfit is not None:
        raise TileError(
            f"{what}: its metadata has {unfit}={told[unfit]!r}, which is to be an integer",
            notes=["put the JSON file that was saved with it beside it"],
        )
    warps = record.metadata["num_warps"]
    if facts.warps is not None and facts.warps != warps:
        raise TileError(
            f"{what} is for blocks of {facts.warps} warps, and its metadata says {warps}",
            notes=["num_warps in the JSON file beside it is what a launch uses"],
        )
    shared = record.metadata["shared"]
    if not 0 <= shared <= target.max_shared_bytes:
        raise TileError(
            f"{what} needs {shared} bytes of shared memory, and {target} has {target.max_shared_bytes}",
            code="shared-memory",
        )


def _check_parameters(what: str, facts: Facts, record: Record) -> Record:
    arguments = list(record.arguments or ())
    if facts.types is not None:
        expected = expected_types(arguments)
        numbers = [number for number, _ in expected]
        if len(facts.types) != len(expected):
            raise TileError(
                f"{what} takes {len(facts.types)} parameters ({', '.join(facts.types)}), and a launch gives "
                f"{len(expected)} ({', '.join(str(each) for each in arguments)})"
            )
        for kind, (number, begins) in zip(facts.types, expected, strict=True):
            if not kind.startswith(begins):
                raise TileError(f"{what} takes {arguments[number].name} as {kind}, not {arguments[number].type}")
        for place, attributes in facts.attributes.items():
            arguments[numbers[place]] = _with(arguments[numbers[place]], attributes)
        return replace(record, arguments=tuple(arguments))
    if facts.parameter_bytes is not None:
        known = record.parameter_bytes
        expected_sizes = expected_bytes(arguments) if known is None else known
        fits = expected_sizes is None or same_parameters(facts.parameter_bytes, expected_sizes)
        if not fits:
            raise TileError(
                f"{what} takes parameters of {_listed(facts.parameter_bytes)} bytes, and a launch gives "
                f"{_listed(expected_sizes or ())}",
                notes=[f"the arguments are {', '.join(str(each) for each in arguments if not each.is_constant)}"],
            )
    return record


def _with(argument: Argument, attributes: Mapping[str, int]) -> Argument:
    merged: dict[str, Any] = dict(argument.attributes)
    for name, value in attributes.items():
        if name == "tt.divisibility" and value > 16:
            raise TileError(
                f"{argument.name} is taken to be a multiple of {value}, and a launch knows of multiples of 16 only"
            )
        if value > 1:
            merged[name] = 16 if name == "tt.divisibility" else value
    return replace(argument, attributes=merged)


def _listed(sizes: Collection[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"
