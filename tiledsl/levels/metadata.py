"""What a level's file says of its kernel itself: its name, parameters, warps and target."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiledsl.codegen.functions import SIGNATURE_TYPES
from tiledsl.interchange.standard import ELEMENT_NAMES
from tiledsl.ir.types import is_float
from tiledsl.levels import cubin
from tiledsl.levels.record import Argument

_ENTRY = {
    "ttir": r"tt\.func\s+public\s+@([\w.$-]+)\s*\(",
    "ttgir": r"tt\.func\s+public\s+@([\w.$-]+)\s*\(",
    "llir": r"define\s+(?:[\w()]+\s+)*?(?:ptx_kernel|amdgpu_kernel)\s+void\s+@([\w.$-]+)\s*\(",
    "ptx": r"\.visible\s+\.entry\s+([\w$]+)\s*\(",
    "amdgcn": r"^\s*\.amdhsa_kernel\s+(\S+)(?=$|\s)",
}
_THREADS = {"llir": r'"nvvm\.reqntid"="(\d+)', "ptx": r"^\s*\.reqntid\s+(\d+)"}
_WARPS = r'"ttg\.num-warps"\s*=\s*(\d+)'
_TARGET = {
    "ttgir": r'ttg\.target\s*=\s*"([\w:]+)"',
    "ptx": r"^\s*\.target\s+sm_(\d+)",
    "amdgcn": r'\.amdgcn_target\s+"[\w-]*--(gfx\w+)',
}
MLIR_FLOATS = {SIGNATURE_TYPES[dtype]: name for dtype, name in ELEMENT_NAMES.items() if is_float(dtype)}
_LLVM_BYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_SCRATCH = 2  # pointers that Triton gives every kernel behind its own parameters


@dataclass(frozen=True)
class Facts:
    """None, or nothing, is what the level does not say. `types` are of MLIR, one a parameter, as are `attributes`;
    `parameter_bytes` the parameters' sizes, Triton's own included; `target` as Target prints it; `sources` the folders
    of emitted modules that it names."""

    name: str | None = None
    types: tuple[str, ...] | None = None
    attributes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    parameter_bytes: tuple[int, ...] | None = None
    warps: int | None = None
    target: str | None = None
    sources: frozenset[str] = frozenset()


def read(level: str, data: str | bytes, warp_size: int = 32) -> Facts:
    """The facts of a level's file. ValueError where it has no kernel, or several."""
    raw = data if isinstance(data, bytes) else data.encode()
    sources = frozenset(each.decode() for each in re.findall(rb"/([0-9a-f]{16})(?=[/\"\0])", raw))
    if level == "cubin":
        found = cubin.entries(raw)
        if len(found) != 1:
            raise ValueError(f"it has {len(found)} kernels ({', '.join(each.name for each in found)}), not one")
        entry, capability = found[0], cubin.capability(raw)
        warps = None if entry.threads is None else entry.threads // warp_size
        target = None if capability is None else f"cuda:{capability}"
        return Facts(entry.name, None, {}, entry.parameter_bytes, warps, target, sources)
    if level == "hsaco":
        if raw[:4] != b"\x7fELF":
            raise ValueError("it is no ELF file")
        names = {each.decode() for each in re.findall(rb"\0([A-Za-z_][\w.$]*)\.kd(?=\0)", raw)}
        return Facts(next(iter(names)) if len(names) == 1 else None, sources=sources)
    text = raw.decode(errors="replace")
    entries = list(re.finditer(_ENTRY[level], text, re.MULTILINE))
    if len(entries) != 1:
        raise ValueError(f"it has {len(entries)} kernels, not one")
    parameters = [] if level == "amdgcn" else _parameters(text, entries[0].end())
    is_mlir = level in ("ttir", "ttgir")
    return Facts(
        entries[0][1],
        tuple(map(_mlir_type, parameters)) if is_mlir else None,
        {number: _attributes(each) for number, each in enumerate(parameters)} if is_mlir else {},
        _sizes(level, parameters),
        _warps(level, text, warp_size),
        _target(level, text),
        sources,
    )


def _parameters(text: str, start: int) -> list[str]:
    """The parameters behind an opening parenthesis, as texts."""
    depth, quoted, parts = 0, False, [""]
    for sign in text[start:]:
        if sign == '"':
            quoted = not quoted
        if not quoted:
            if sign == ")" and depth == 0:
                break
            depth += (sign in "([{<") - (sign in ")]}>")
            if sign == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += sign
    return [each.strip() for each in parts if each.strip()]


def _mlir_type(parameter: str) -> str:
    kind = parameter.partition(":")[2].strip()
    return re.split(r"\s(?=\{|loc\()", kind)[0].strip()


def _attributes(parameter: str) -> dict[str, int]:
    found = re.findall(r"\b(tt\.(?:divisibility|pointer_range))\s*=\s*(\d+)", parameter)
    return {name: int(value) for name, value in found}


def _sizes(level: str, parameters: Sequence[str]) -> tuple[int, ...] | None:
    size = {"llir": _llvm_size, "ptx": _ptx_size}.get(level)
    sizes = () if size is None else tuple(map(size, parameters))
    return None if size is None or None in sizes else sizes  # type: ignore[return-value]


def _llvm_size(parameter: str) -> int | None:
    bytes_of = re.search(r"byval\(\[(\d+) x i8\]\)", parameter)
    if bytes_of is not None:
        return int(bytes_of[1])
    kind = parameter.split()[0]
    integer = re.fullmatch(r"i(\d+)", kind)
    return max(1, int(integer[1]) // 8) if integer is not None else _LLVM_BYTES.get(kind)


def _ptx_size(parameter: str) -> int | None:
    block = re.search(r"\.b8\s+\w+\[(\d+)\]", parameter)
    number = re.search(r"\.param\s+\.[usbf](\d+)\b", parameter)
    return int(block[1]) if block is not None else int(number[1]) // 8 if number is not None else None


def _warps(level: str, text: str, warp_size: int) -> int | None:
    if level == "ttgir":
        found = re.search(_WARPS, text)
        return None if found is None else int(found[1])
    threads = re.search(_THREADS[level], text, re.MULTILINE) if level in _THREADS else None
    return None if threads is None else int(threads[1]) // warp_size


def _target(level: str, text: str) -> str | None:
    found = re.search(_TARGET[level], text, re.MULTILINE) if level in _TARGET else None
    kind = {"ptx": "cuda:", "amdgcn": "hip:"}.get(level, "")
    return None if found is None else kind + found[1]


def expected_types(arguments: Sequence[Argument]) -> list[tuple[int, str]]:
    """The parameters of an MLIR function for these arguments: the argument's number, and how the type begins."""
    expected = []
    for number, argument in enumerate(arguments):
        if argument.is_constant:
            continue
        if argument.type.startswith("tensordesc"):
            rank = argument.type.partition("[")[2].partition("]")[0].count(",") + 1
            expected += [(number, "!tt.tensordesc<"), *[(number, "i32")] * rank, *[(number, "i64")] * rank]
        else:
            expected.append((number, mlir_type(argument.type)))
    return expected


def mlir_type(kind: str) -> str:
    """How MLIR writes a type of Triton's; a pointer without its address space."""
    if kind.startswith("*"):
        return f"!tt.ptr<{mlir_type(kind.removeprefix('*k').removeprefix('*'))}"
    return re.sub(r"^u(?=\d)", "i", MLIR_FLOATS.get(kind, kind))


def expected_bytes(arguments: Sequence[Argument]) -> tuple[int, ...] | None:
    """The sizes of a binary's parameters for these arguments, Triton's own not counted; None where descriptors are
    among them, which take what Triton's passes decide."""
    sizes = []
    for argument in arguments:
        number = re.fullmatch(r"(?:i|u|fp|bf)(\d+)", argument.type)
        if argument.type.startswith("*"):
            sizes.append(8)
        elif number is not None:
            sizes.append(max(1, int(number[1]) // 8))
        elif not argument.is_constant:
            return None
    return tuple(sizes)


def same_parameters(found: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether a binary with parameters of these sizes takes what Triton hands over for the expected ones, among which
    Triton's own may be, or not."""
    rest = tuple(found[len(expected) :])
    return tuple(found[: len(expected)]) == tuple(expected) and rest in [(8,) * count for count in range(_SCRATCH + 1)]
