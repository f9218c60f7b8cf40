"""The table of element types: it is whole, lowering keeps to it, and both Tritons compile what it allows."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiledsl
import tiledsl.language as T
from tests.legality.entries import ALL, Entry, every
from tests.legality.walk import TARGETS, accepted, disagreements, failures
from tiledsl import legality
from tiledsl.errors import TileError
from tiledsl.ir.types import ELEMENTS
from tiledsl.math_functions import MATH_FUNCTIONS
from tiledsl.runtime.target import Target

# Every so many entries are lowered here; `make types` lowers and compiles all.
STEP = 101
COMPILED = re.compile(
    "gemm of (int8 and uint8|uint8 and uint8|int16 and int16|int32 and bool|bool and bool) into (int32|float32)$|"
    "(popcount|clz) of u?int(8|16|32|64), |not of bool as a number|atomic_add of (float16|int64)|mulhi of uint32|"
    "(exp10|rint|sigmoid) of float32, tile|cast float64 to float8_e4m3fn|reduce_(sum|bitxor) of (bool|int8) into bool|"
    "cumsum of bfloat16|atomic_load of float32, acquire|atomic_cas of (uint16|float16|float64), seq_cst|"
    "scatter cas of float16"
)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return every()


def _questions() -> list[tuple[str, tuple[str, ...]]]:
    """Everything that may be asked: each operation on all element types."""
    arity = {"cast": 2, "bitcast": 2, "dot": 3}
    made = []
    for name in legality.operations():
        for types in itertools.product(ALL, repeat=arity.get(name, 1)):
            if name != "bitcast" or ELEMENTS[types[0]].bits == ELEMENTS[types[1]].bits:
                made.append((name, types))
    return made


def test_every_question_has_an_answer_and_an_entry(entries: list[Entry]) -> None:
    asked = {ask for entry in entries for ask in entry.asks}
    asked |= {("value", (dtype,)) for entry in entries for _, dtype in entry.params}
    assert [question for question in _questions() if question not in asked] == []
    for question in _questions():
        for target in map(Target.parse, (*TARGETS, "interpret")):
            verdict = legality.verdict(*question, target.kind, target.arch)
            assert not (verdict.rewrite and verdict.reason) and verdict.rewrite in {"", *legality.REWRITES}


def test_no_row_is_hidden_by_those_before() -> None:
    used = set()
    for target in map(Target.parse, (*TARGETS, "interpret", "cuda:75", "hip:gfx90a")):
        for triton in ("", "3.9"):
            for name, types in _questions():
                for row in legality.TABLE:
                    if name in row.operations.split() and row.fits(types, target.kind, target.arch, triton):
                        used.add(row)
                        break
    assert [row for row in legality.TABLE if row not in used] == []


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_lowering_keeps_to_the_table(entries: list[Entry], target: str) -> None:
    """What is refused is refused at the user's line; nothing else is."""
    some = entries[::STEP] if target == "cuda:90" else entries[STEP // 2 :: STEP]
    assert disagreements(some, target) == {}


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("cuda:90", "3.6"),
        ("hip:gfx942", "newest"),
        pytest.param("cuda:90", "newest", marks=pytest.mark.slow),
        pytest.param("hip:gfx942", "3.6", marks=pytest.mark.slow),
    ],
)
def test_triton_compiles_what_the_table_allows(
    entries: list[Entry], target: str, version: str, request: pytest.FixtureRequest
) -> None:
    python = sys.executable if version == "newest" else request.getfixturevalue("triton36")
    some = [entry for entry in entries if COMPILED.match(entry.name)]
    assert len(some) > 50
    assert failures(accepted(some, target), target, python) == {}


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_what_hip_lacks_depends_on_the_version(version: str, request: pytest.FixtureRequest) -> None:
    python = sys.executable if version == "newest" else request.getfixturevalue("triton36")
    program = (
        "import importlib.metadata as m, importlib.util as u; print(m.version('triton'), u.find_spec('triton').origin)"
    )
    number, origin = subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.split()
    library = Path(origin).parent.joinpath("language/extra/hip/libdevice.py").read_text()
    for operation, record in MATH_FUNCTIONS.items():
        dtype = "float32" if record.takes in ("floats", "rounding", "wide floats") else "int32"
        if not record.spelling.startswith("libdevice.") or record.spelt_out:
            continue
        has = legality.verdict(operation, (dtype,), "hip", "gfx942", number).is_native
        is_there = f"def {record.library_name}(" in library
        assert has == is_there, (
            f"Triton {number} {'has' if is_there else 'lacks'} {record.library_name} in language/extra/hip/libdevice.py"
            f": {operation}'s `lacking` in math_functions.py is to say so, and `instead` what is written there"
        )
        if record.lacking:
            without_version = legality.verdict(operation, (dtype,), "hip", "gfx942")
            assert not without_version.is_native  # what is emitted suits all versions


def test_a_refusal_says_what_to_write_instead() -> None:
    @T.prim_func
    def product(A: T.Tensor((32, 32), "int64"), B: T.Tensor((32, 32), "int8"), C: T.Tensor((32, 32), "int64")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "int64")
            b = T.alloc_shared((32, 32), "int8")
            c = T.alloc_fragment((32, 32), "int64")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c)
            T.copy(c, C)

    with pytest.raises(TileError) as caught:
        tiledsl.compile(product, target="cuda:90")
    assert caught.value.message == "T.gemm: a is int64 and b is int8; 64-bit integers are not multiplied as tiles"
    assert "convert both to int32" in caught.value.notes[0]
    assert caught.value.loc is not None and "test_table.py" in caught.value.loc.file
