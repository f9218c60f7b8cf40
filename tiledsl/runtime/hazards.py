"""What versions of Triton and of ptxas get wrong or refuse, how that is avoided, and how it is found in a kernel.

`HAZARDS` is the list. What emission alone does not keep away is looked for in what Triton made of a kernel: compile.py
compiles it again from other PTX or with fewer of ptxas's optimisations, or refuses it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiledsl.runtime.layouts import lanes_are_scattered, last_lane_is_misjudged, movements, stride_is_misjudged
from tiledsl.runtime.rings import overwritten_tiles

RIGHT_TRITON = (3, 9)  # the first whose reductions and scans follow every layout
RIGHT_PTXAS = (13, 0)  # the first that is known to be right in what `_MISTAKES` calls old


@dataclass(frozen=True)
class Hazard:
    """`versions`: of Triton, or of ptxas where it says so. `avoided`: the rule that keeps kernels away from it.
    `program`: the test that has a program for it."""

    name: str
    what: str
    versions: str
    avoided: str
    program: str


_REFUSED = "tests/codegen/test_hazards.py::test_compiles"
_WRONG = "tests/gpu/test_hazards.py"
HAZARDS = (
    Hazard(
        "gather-smaller-than-block",
        "optimize-thread-locality asserts for a gather of two and more dimensions whose source has fewer elements "
        "than the block has threads",
        "3.6, 3.7",
        "legalize-layouts gathers along a single dimension",
        _REFUSED,
    ),
    Hazard(
        "float8-number",
        "tl.full and tl.where make no number of float8 but 0",
        "3.6",
        "codegen/expressions.py makes a float32 and casts it",
        _REFUSED,
    ),
    Hazard(
        "float64-product-of-narrow",
        "a float64 product whose operand is computed from numbers of less than 32 bits in memory asserts in the "
        "lowering of mma",
        "3.6",
        "legalize-layouts sums the operand over a dimension of 1",
        _REFUSED,
    ),
    Hazard(
        "atomic-with-python-mask",
        "the mask of an atomic cannot be a bool of Python's",
        "all",
        "canonicalize drops known masks; codegen/kernels.py casts those that a launch makes known",
        _REFUSED,
    ),
    Hazard(
        "flatten-around-pure-loop",
        "fuse-nested-loops asserts for a loop around a single one without effects, before which nothing is computed",
        "3.6",
        "passes/schedule_loops.py leaves the others",
        _REFUSED,
    ),
    Hazard(
        "flatten-before-branch",
        "fuse-nested-loops may give an if behind the inner loop results, of which one of its sides yields none",
        "3.6",
        "passes/schedule_loops.py leaves such loops",
        _REFUSED,
    ),
    Hazard(
        "while-with-tiles",
        "remove-layout-conversions takes results of a while for those of other numbers if a value is carried to "
        "the condition alone",
        "3.6",
        "codegen/kernels.py tests a flag, which is carried last",
        _REFUSED,
    ),
    Hazard(
        "alike-carried",
        "a variable that a loop assigns from another one is not carried if both begin with the same value",
        "all",
        "codegen/kernels.py begins with a copy of it",
        "tests/codegen/test_hazards.py::test_variables_that_begin_alike_are_carried",
    ),
    Hazard(
        "linear-like-blocked",
        "remove-layout-conversions computes indices again in a linear layout and takes an equal blocked one for it",
        "3.6",
        "legalize-layouts computes indices in the shape in which they are used",
        _REFUSED,
    ),
    Hazard(
        "dead-while",
        "coalesce reads what the analysis of a loop's dead body does not have",
        "3.6",
        "canonicalize removes a while whose condition is false for the initial values; legalize-layouts guards one "
        "of which a launch with an integer of 1 may show it",
        _REFUSED,
    ),
    Hazard(
        "constant-of-two-layouts",
        "remove-layout-conversions moves a constant that two operations share to the layout of one of them",
        "3.6",
        "legalize-arith compares reduced flags with 1, which few tiles beside them are, where many are 0; "
        "vectorize-parallel combines integers without flags",
        _REFUSED,
    ),
    Hazard(
        "scan-beside-ones",
        "a scan along an axis beside a dimension on which no thread moves shuffles by the wrong distance, or asserts; "
        "beside one that is smaller than what threads it has, it goes on behind the wrong element",
        "3.6",
        "legalize-layouts scans without dimensions of 1, and relays others; found in the layouts",
        f"{_WRONG}::test_scans",
    ),
    Hazard(
        "reversed-scan",
        "a scan in reverse gave wrong results, why is not known",
        "3.6",
        "legalize-layouts turns the elements round and scans forwards",
        f"{_WRONG}::test_scans",
    ),
    Hazard(
        "scattered-reduction",
        "a reduction of a tile with a linear layout exchanges with the wrong lanes where those along the axis are "
        "no neighbours",
        "3.6",
        "legalize-layouts relays what is behind a reshape; found in the layouts",
        f"{_WRONG}::test_reductions",
    ),
    Hazard(
        "copy-under-product",
        "the pipeliner keeps too few copies of a tile that an asynchronous product and something else read: it is "
        "overwritten while the product reads it",
        "all",
        "pipeline-loops loads such a tile twice; found in the copies that loops keep",
        f"{_WRONG}::test_copies",
    ),
    Hazard(
        "float8-pair-twice",
        "a conversion to a pair of float8 that is used for both halves of a word leaves one half as it was",
        "ptxas 12.8, 12.9",
        "found in the machine code; conversions that ptxas does not merge take the place of all in the PTX; words in "
        "Gluon are packed by a shift where both pairs may be the same",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "add-of-16-bit-pairs",
        "add.s16x2 loses its immediate",
        "ptxas 12.8, 12.9",
        "found in the machine code",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "maximum-of-negated",
        "a maximum of three numbers loses the negation of one, such as of one that is taken from 0",
        "ptxas 12.8, 12.9",
        "found in the machine code",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "constant-from-float8",
        "a conversion from float8 of a number that is 0 at compile time reads what lies at the address of the 0",
        "ptxas 12.8, 12.9",
        "found in the machine code",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "carry-of-mulhi",
        "mul.hi.u32 fused with a subtraction of 64 bits takes the wrong carry for 0",
        "ptxas up to 13.4",
        "lower-to-triton moves pointers in two steps; found in the machine code",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "unused-half-of-predicates",
        "of a conjunction and a disjunction of the same two predicates, made at once, the one that is used is computed "
        "as the other if that one is used by nothing but an exchange of lanes whose result nobody reads",
        "ptxas up to 13.4",
        "found in the machine code; what nobody reads is taken from the PTX",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "lost-product",
        "of a loop that is unrolled whole, one iteration goes without one of its asynchronous products: what the one "
        "before has computed takes its place, and a product of nothing stands where it was",
        "ptxas up to 13.4",
        "found in the machine code; loops are not unrolled",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "halves-of-descriptor",
        "of two tiles of different swizzling that lie at one place of shared memory one after the other, the second's "
        "descriptor is added up from one register for both of its halves: a product reads elsewhere",
        "ptxas 12.8",
        "found in the machine code; descriptors are added up by halves in the PTX",
        f"{_WRONG}::test_machine_code",
    ),
    Hazard(
        "saturating-product",
        "mma.sync of int8 stops at the ends of int32, where what is added to wraps",
        "all",
        "found in the machine code; products that wrap take the place of all in the PTX",
        f"{_WRONG}::test_machine_code",
    ),
)


def layout_hazards(ttgir: str) -> list[tuple[str, str]]:
    """(hazard, type of the tile) for each reduction and scan that Triton 3.6 gets wrong."""
    hazards: dict[tuple[str, str], None] = {}
    for each in movements(ttgir):
        misjudged = stride_is_misjudged(each) or last_lane_is_misjudged(each)
        if each.kind == "scan" and (misjudged or lanes_are_scattered(each)):
            hazards["scan-beside-ones", each.type] = None
        elif each.kind == "reduce" and lanes_are_scattered(each):
            hazards["scattered-reduction", each.type] = None
    return list(hazards)


def refusal(asm: Mapping[str, Any]) -> tuple[str, str] | None:
    """What this version of Triton gets wrong in a kernel, by its GPU dialect, and a way out; None if nothing is."""
    ttgir = asm.get("ttgir", "")
    for name, type in layout_hazards(ttgir) if _triton_version() < RIGHT_TRITON else []:
        return f"{type}: {_what(name)}", (
            "Triton 3.9 is right; or compute that tile in a kernel apart from tiles of other shapes"
        )
    for each in overwritten_tiles(ttgir):
        return f"{each.tile}: {_what('copy-under-product')}", (
            "num_stages=1 for its loop is right; or load the tile a second time for what is computed from it"
        )
    return None


def _what(name: str) -> str:
    return next(each.what for each in HAZARDS if each.name == name)


def machine_code_hazards(asm: Mapping[str, Any]) -> list[str]:
    """The hazards in a kernel's machine code, by name; those of PTX that may lead to them where no tool reads that."""
    ptx = asm.get("ptx", "")
    suspected = [each for each in _MISTAKES if each.is_suspected(ptx)]
    if any(not each.always for each in suspected) and _ptxas_version() >= RIGHT_PTXAS:
        suspected = [each for each in suspected if each.always]
    sass = asm["sass"] if suspected else None
    names = [each.name for each in suspected if sass is None or each.is_made(sass)]
    return [*names, "lost-product"] if _PRODUCT_OF_NOTHING in (asm.get("cubin") or b"") else names


_TO_FLOAT8 = re.compile(r"(cvt\.rn\.satfinite\.(?:relu\.)?e(?:4m3|5m2)x2\.f(?:32|16x2)\s+)(%rs\d+)(\s*,[^;]*;)")
_FROM_FLOAT8 = r"cvt\.rn\.f16x2\.e(?:4m3|5m2)x2"
_ALONE = (
    r"{ .reg .b16 %half; .reg .b32 %word; \1%half\3 cvt.u32.u16 %word, %half; "
    r"prmt.b32 %word, %word, 0, 0x1010; cvt.u16.u32 \2, %word; }"
)


def without_merges(ptx: str) -> str:
    """The PTX with conversions to float8 that compute the same and that no ptxas merges with the packing of words:
    a permutation stands between."""
    return _TO_FLOAT8.sub(_ALONE, ptx)


_SATURATING = re.compile(r"(\bmma\.sync\.[\w.]*)\.satfinite(\.s32\.)")


_MADE = re.compile(
    r"^\s*(?:shfl\.sync|selp|setp|and|or|xor|not|min|max|add|sub|mul|mad|fma|neg|abs|shl|shr|cvt|mov)\.[\w.]+\s+(%\w+),.*;$"
)


def without_unread(ptx: str) -> str:
    """The PTX without values of its own that nobody reads: exchanges of lanes, and what only they read."""
    lines = ptx.splitlines(keepends=True)
    uses = Counter(re.findall(r"%\w+", ptx))
    left = len(lines) + 1
    while len(lines) < left:
        left, kept = len(lines), []
        for line in reversed(lines):
            made = _MADE.match(line)
            if made is not None and uses[made[1]] == 1:
                uses.subtract(re.findall(r"%\w+", line))
            else:
                kept.append(line)
        lines = kept[::-1]
    return "".join(lines)


# HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT of sm_90, but for what says when it may begin. To disassemble each kernel
# with asynchronous products would take as long as to compile it.
_PRODUCT_OF_NOTHING = bytes.fromhex("f079ff3f00000000ff00000c")
_LABEL = re.compile(r"^(\$L__BB\w+):.*$", re.MULTILINE)


def without_unrolling(ptx: str) -> str:
    """The PTX with loops, labels that are jumped back to, that ptxas may not unroll."""

    def marked(label: re.Match[str]) -> str:
        is_loop = re.compile(rf"\bbra(?:\.uni)?\s+{re.escape(label[1])};").search(ptx, label.end())
        return f'{label[0]}\n\t.pragma "nounroll";' if is_loop else label[0]

    return _LABEL.sub(marked, ptx)


_SUM = re.compile(r"add\.s64\s+(%rd\d+),\s*(%rd\d+),\s*(-?\d+);")


def with_descriptors_by_halves(ptx: str) -> str:
    """The PTX with descriptors of asynchronous products that are added up from two words each, the same numbers."""
    descriptors = set(re.findall(r"%rd\d+", " ".join(re.findall(r"wgmma\.mma_async[^;]*;", ptx))))

    def halved(sum: re.Match[str]) -> str:
        to, first, number = sum.groups()
        if to not in descriptors:
            return sum[0]
        low, high = (int(number) >> shift & 0xFFFFFFFF for shift in (0, 32))
        return (
            f"{{ .reg .b32 %low, %high; mov.b64 {{%low, %high}}, {first}; add.cc.u32 %low, %low, {low}; "
            f"addc.u32 %high, %high, {high}; mov.b64 {to}, {{%low, %high}}; }}"
        )

    return _SUM.sub(halved, ptx)


_REPAIRS: Mapping[str, Callable[[str], str]] = {
    "halves-of-descriptor": with_descriptors_by_halves,
    "float8-pair-twice": without_merges,
    "saturating-product": partial(_SATURATING.sub, r"\1\2"),  # sums wrap around, as wgmma's and others' do
    "unused-half-of-predicates": without_unread,
    "lost-product": without_unrolling,
}


def repaired(ptx: str, names: Iterable[str]) -> str:
    """The PTX without what leads to these hazards, as far as another PTX helps."""
    for name in names:
        ptx = _REPAIRS.get(name, str)(ptx)
    return ptx


@dataclass(frozen=True)
class _Mistake:
    name: str
    is_suspected: Callable[[str], bool]  # from PTX
    is_made: Callable[[str], bool]  # from machine code; may be true where there is none
    always: bool = False  # whatever the version of ptxas is


_INSTRUCTION = re.compile(r"^\s*(?:/\*[0-9a-f]+\*/\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*[\w.]*)\s*([^;]*);")
_OF_WORDS = re.compile(  # each of their operands is one register
    r"(F2FP|MOV|IADD3|LOP3|PRMT|SHF|SEL|LEA|VIADD|VIMNMX|F(ADD|MUL|FMA|MNMX|SEL)|H(ADD|MUL|FMA)2|IMAD(?!\.WIDE))\b"
)
_OF_PAIRS = re.compile(r"(IMAD\.WIDE|LD[CGS]|ST[GS]|SHFL|I2F|F2I|S2R|[IF]SETP|HSETP2|ISCADD|SGXT|MUFU)\b")


def _merges_unknown(sass: str) -> bool:
    """Whether a conversion to float8 is merged with a register that is not certainly what the other half was made in.

    ptxas merges the second of two conversions with the first, and one that is its own other half with a register in
    which anything lies. Certain is the result of a conversion shortly before that nothing else reads.
    """
    block: list[tuple[str, str]] = []  # (operation, operands) since the last label or jump
    blocks = [block]
    for line in sass.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            if line.lstrip().startswith(".L"):
                blocks.append(block := [])
            continue
        block.append((("@" if "@" in line[: instruction.start(1)] else "") + instruction[1], instruction[2]))
        if instruction[1] in ("BRA", "BRX", "JMP", "RET", "CALL", "BSYNC", "WARPSYNC"):
            blocks.append(block := [])
    return any(
        not _is_other_half(block, place)
        for block in blocks
        for place, (name, operands) in enumerate(block)
        if "MERGE_C" in name and operands.split(",")[-1].strip().removesuffix(".reuse") != "RZ"
    )


def _is_other_half(block: list[tuple[str, str]], place: int) -> bool:
    """Whether what the conversion at `place` is merged with was converted for it alone."""
    parts = [operand.strip().removesuffix(".reuse") for operand in block[place][1].split(",")]
    register = parts[-1]
    if block[place][0].startswith("@") or not re.fullmatch(r"R\d+", register) or register == "R1":
        return False
    for name, operands in reversed(block[:place]):
        to, *others = [operand.strip().removesuffix(".reuse") for operand in operands.split(",")]
        if to == register and name.startswith("F2FP") and "MERGE_C" in name:
            if others[-1] != "RZ" or any(register in operand for operand in others):
                return False
            break
        if _touches(name, operands, register):
            return False
    else:
        return False
    if parts[0] == register:
        return True
    for name, operands in block[place + 1 :]:
        to, *others = [operand.strip().removesuffix(".reuse") for operand in operands.split(",")]
        if _OF_WORDS.match(name) and to == register and register not in re.findall(r"R\d+", " ".join(others)):
            return True
        if _touches(name, operands, register):
            return False
        if name == "EXIT":
            return True
    return False


def _touches(name: str, operands: str, register: str) -> bool:
    """Whether an operation may read or write a register: each operand may be several in a row."""
    name = name.removeprefix("@")
    in_row = 1 if _OF_WORDS.match(name) else 2 if _OF_PAIRS.match(name) and "128" not in name else 4
    last = int(register[1:])
    return any(last - in_row < int(number) <= last for number in re.findall(r"\bR(\d+)", operands))


def _chooses_among_negated(ptx: str) -> bool:
    negated = set(re.findall(r"(?:neg|sub)\.s32 \t?(%r\d+)", ptx))  # what is subtracted from may be 0
    return any(not negated.isdisjoint(each) for each in re.findall(r"m(?:ax|in)\.s32 \t?%r\d+, (%r\d+), (%r\d+)", ptx))


def _subtracts_from_mulhi(ptx: str) -> bool:
    high = set(re.findall(r"mul\.hi\.u32 \t?(%r\d+)", ptx))
    if not high:
        return False
    wide = {to for to, source in re.findall(r"cvt\.u64\.u32 \t?(%rd\d+), (%r\d+)", ptx) if source in high}
    return any(each in wide for each in re.findall(r"sub\.s64 \t?%rd\d+, (%rd\d+)", ptx))


def _combines_both_ways(ptx: str) -> bool:
    both, either = (set(re.findall(rf"\b{name}\.pred\s+%p\d+, (%p\d+, %p\d+);", ptx)) for name in ("and", "or"))
    return not both.isdisjoint(either | {", ".join(each.split(", ")[::-1]) for each in either})


def _describes_two_tiles(ptx: str) -> bool:
    """Whether one address becomes descriptors of different kinds, which differ in their upper words."""
    kinds: dict[str, set[int]] = {}
    for address, number in re.findall(r"(?:or\.b64|add\.s64)\s+%rd\d+,\s*(%rd\d+),\s*(-?\d{10,});", ptx):
        kinds.setdefault(address, set()).add(int(number) >> 32)
    return any(len(each) > 1 for each in kinds.values())


def _adds_one_half_twice(sass: str) -> bool:
    """Whether both halves of a sum of 64 bits in uniform registers begin with one register."""
    carried: dict[str, str] = {}  # by predicate: the register whose sum it was carried from
    for line in sass.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        to, *operands = [operand.strip() for operand in instruction[2].split(",")]
        if instruction[1] == "UIADD3.X" and any(carried.get(each) == operands[0] for each in operands[1:]):
            return True
        made = range(int(to[2:]), int(to[2:]) + 4) if re.fullmatch(r"UR\d+", to) else ()  # four at most, in a row
        carried = {each: register for each, register in carried.items() if register not in {f"UR{at}" for at in made}}
        if instruction[1] == "UIADD3" and re.fullmatch(r"UP\d", operands[0]):
            carried[operands[0]] = operands[1]
    return False


def _has(pattern: str | re.Pattern[str]) -> Callable[[str], bool]:
    return lambda code: re.search(pattern, code) is not None


def _computes_unused(sass: str) -> bool:
    """Whether a predicate that goes nowhere (PT) has a table of its own: else its table is 0 or, for Blackwell, that of
    the other one with its halves exchanged."""
    tables = re.findall(r"PLOP3\.LUT P\d, PT, [^;]*, 0x(\w+), 0x(\w+) ;", sass)
    return any(second not in ("0", first.zfill(2)[::-1].lstrip("0")) for first, second in tables)


def _pairs_twice(sass: str) -> bool:
    return _has(r"LOP3\.LUT R\d+, R1, 0xffff,")(sass) or _merges_unknown(sass)


_MISTAKES = (
    _Mistake("float8-pair-twice", _has(_TO_FLOAT8), _pairs_twice),
    _Mistake("add-of-16-bit-pairs", _has(r"add\.s16x2"), _has(r"VIADD\.16x2[^;]*, 0x0 ;")),
    _Mistake("maximum-of-negated", _chooses_among_negated, _has(r"VIMNMX3")),
    _Mistake("constant-from-float8", _has(_FROM_FLOAT8), _has(r"F2FP\.[\w.]*UNPACK_B R\d+, (?!U?R)")),
    _Mistake("carry-of-mulhi", _subtracts_from_mulhi, _has(r"IMAD\.HI\.U32 R\d+, P\d"), always=True),
    _Mistake("unused-half-of-predicates", _combines_both_ways, _computes_unused, always=True),
    _Mistake("halves-of-descriptor", _describes_two_tiles, _adds_one_half_twice),
    _Mistake("saturating-product", _has(_SATURATING), _has(r"IMMA\.[\w.]*SAT"), always=True),
)


def _triton_version() -> tuple[int, ...]:
    import triton

    return _version(triton.__version__)


def _ptxas_version() -> tuple[int, ...]:
    """Of the ptxas for GPUs before Blackwell; what compiles for those is as new or newer."""
    try:
        from triton import knobs

        return _version(knobs.nvidia.ptxas.version)
    except Exception:  # a private name, or a tool that is missing: then nothing is known to be right
        return (0,)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:2])
