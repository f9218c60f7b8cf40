"""limit-registers: which kernels are held to the registers of two blocks, and what Triton makes of it."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.codegen.test_block_modules import gemm
from tests.passes.ir_cases import kernel_of, program
from tests.passes.test_peel_loops import POINTERS
from tests.passes.test_peeled_programs import forward
from tiledsl.dialects.tile import KernelOp
from tiledsl.errors import TileError
from tiledsl.passes.limit_registers import LimitRegisters, _is_matrix
from tiledsl.runtime.target import Target

BOTH = {"block_M": 128, "block_N": 128, "threads": 256}


def source(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> str:
    return tiledsl.compile(program, target=target, pass_configs={**POINTERS, **options}).source


def test_two_blocks_of_attention_run_on_a_multiprocessor() -> None:
    kernel = tiledsl.compile(forward(4096, 64, **BOTH), target="cuda:90", pass_configs=POINTERS)
    assert "maxnreg=128" in kernel.source
    found = kernel.resources
    assert found.registers is not None and found.registers <= 128 and found.spills == 0
    other = tiledsl.compile(
        forward(4096, 64, **BOTH), target="cuda:90", pass_configs={**POINTERS, "limit-registers.mode": "off"}
    )
    assert "maxnreg" not in other.source and (other.resources.registers or 0) > 128


HEAD = """
%scores16 = arith.constant {value = 0.0} : tensor<128x128xfloat16>
%a = arith.constant {value = 0.0} : tensor<128x64xfloat16>
%b = arith.constant {value = 0.0} : tensor<64x128xfloat16>
%v = arith.constant {value = 0.0} : tensor<128x64xfloat16>
%scores = arith.constant {value = 0.0} : tensor<128x128xfloat32>
%out = arith.constant {value = 0.0} : tensor<128x64xfloat32>
%t = arith.constant {value = 0.0} : tensor<16x16xfloat16>
%small = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%row = arith.constant {value = 0.0} : tensor<128x1xfloat32>
%i = tensor.iota {axis = 0} : tensor<128x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x128xint32>
"""
SCORES = "%s{n} = tensor.dot %a, %b, %scores : tensor<128x128xfloat32>\n"  # 64 registers of a thread of 256
SUMS = "%o{n} = tensor.dot %scores16, %v, %out : tensor<128x64xfloat32>\n"  # 32
SMALL = "%t{n} = tensor.dot %t, %t, %small : tensor<16x16xfloat32>\n"  # 1
BOTH_SUMS = SCORES + SUMS
MORE = "%i{n} = arith.add %i, %j : tensor<128x128xint32>\n"


def loop(number: int, body: str, carried: str = "out") -> str:
    """A loop with these operations, that carries these tiles."""
    types = {"out": "tensor<128x64xfloat32>", "small": "tensor<16x16xfloat32>", "row": "tensor<128x1xfloat32>"}
    names = carried.split()
    kinds = ", ".join(types[name] for name in names)
    results, arguments = (", ".join(f"%{kind}{number}_{n}" for n, _ in enumerate(names)) for kind in "rx")
    declared = ", ".join(f"%x{number}_{n}: {types[name]}" for n, name in enumerate(names))
    lines = "".join(each.format(n=f"{number}_{n}") + "\n" for n, each in enumerate(body.split("\n")[:-1]))
    inits = ", ".join(f"%{name}" for name in names)
    return f"""{results} = scf.for %c0, %c8, %c1[{inits}] : {kinds} (%k{number}: int32, {declared}) {{
      {lines} scf.yield [{arguments}]
    }}\n"""


def limit(
    body: str, threads: int = 256, target: str | None = "cuda:90", given: int | None = None, **options: str
) -> object:
    made = program(
        HEAD + "%scores16 = arith.cast %scores : tensor<128x128xfloat16>\n" + body,
        target=target and Target.parse(target),
    )
    kernel = kernel_of(made)
    assert isinstance(kernel, KernelOp)
    kernel.set_attribute("threads", threads)
    kernel.set_option("maxnreg", given)
    LimitRegisters(**options).run(made)
    return kernel.option("maxnreg")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (loop(0, BOTH_SUMS), 128),
        (loop(0, SCORES), None), (loop(0, SCORES + SMALL * 3), None),
        # 88 and less do with 128 beside 40 others, 101 and more leave less than 28.
        (loop(0, SCORES + SMALL * 24), None), (loop(0, SCORES + SMALL * 25), 128),
        (loop(0, BOTH_SUMS + SMALL * 4), 128), (loop(0, BOTH_SUMS + SMALL * 5), None),
        (loop(0, BOTH_SUMS, "out row"), 128), (loop(0, BOTH_SUMS, "out small"), None),
        (loop(0, BOTH_SUMS, "small"), 128),
        # Arithmetic with integers for each element; for each row it does not matter.
        (loop(0, BOTH_SUMS + MORE), None), (MORE.format(n=0) + loop(0, BOTH_SUMS), 128),
        (loop(0, BOTH_SUMS + "%i{n} = arith.add %i, %i : tensor<128x1xint32>\n"), 128),
        (loop(0, BOTH_SUMS + "%i{n} = arith.add %out, %out : tensor<128x64xfloat32>\n"), 128),
        (loop(0, BOTH_SUMS + '%i{n} = arith.cmp %i, %j {{predicate = "lt"}} : tensor<128x128xbool>\n'), 128),
        # The loop that needs most decides.
        (loop(0, SMALL * 2, "out small") + loop(1, BOTH_SUMS), 128), (loop(0, BOTH_SUMS) + loop(1, SMALL * 2), 128),
        (loop(0, SMALL * 2) + loop(1, BOTH_SUMS, "out small"), None),
    ],
)  # fmt: skip
def test_which_loops_need_the_limit(body: str, expected: int | None) -> None:
    assert limit(body) == expected


def test_what_was_not_measured_stays() -> None:
    body = loop(0, BOTH_SUMS)
    assert (
        limit(body, threads=128)
        is limit(body, target="cuda:80")
        is limit(body, mode="off")
        is limit(body, target=None)
        is None
    )
    others = loop(0, BOTH_SUMS + SMALL * 15, "small")  # 222 registers of 256
    assert limit(others, threads=128) is None
    assert limit(body, given=100) == 100


def test_loops_that_multiply_what_they_load_stay() -> None:
    loads = """%l = tile.load %A[%i, %j] : tensor<128x128xfloat32>
      %m = tile.load %B[%i, %w] : tensor<128x64xfloat32>
      """
    dots = """%s = tensor.dot %l, {factor}, %scores : tensor<128x128xfloat32>
      %o = tensor.dot %l, %m, %out : tensor<128x64xfloat32>
      """
    head = "%w = tensor.iota {axis = 1} : tensor<1x64xint32>\n"
    assert limit(head + loop(0, loads + dots.replace("{factor}", "%l"))) is None
    assert limit(head + loop(0, loads + dots.replace("{factor}", "%scores"))) == 128


def test_other_targets_products_and_given_numbers_stay() -> None:
    assert "maxnreg" not in source(forward(4096, 64, **BOTH), "cuda:80")
    assert "maxnreg" not in source(gemm(4096, 4096, 4096, 128, 192, 64))
    assert "maxnreg=200" in source(forward(4096, 64, **BOTH), **{"lower-to-triton.maxnreg": 200})
    gluon = tiledsl.compile(forward(4096, 64, **BOTH), target="cuda:90")
    assert "@gluon.jit" in gluon.source and "maxnreg=128" not in gluon.source


@pytest.mark.parametrize(("stages", "limited"), [(3, True), (4, False)])
def test_kernels_whose_shared_memory_leaves_no_room_for_a_second_block_stay(stages: int, limited: bool) -> None:
    """Of 233472 bytes, a stage takes 32768 and the queries 16384."""
    assert ("maxnreg" in source(forward(4096, 64, **BOTH, num_stages=stages))) is limited


def test_other_modes_are_refused() -> None:
    with pytest.raises(TileError, match=r"limit-registers\.mode is 'on'; it must be one of auto, off"):
        source(forward(4096, 64, **BOTH), **{"limit-registers.mode": "on"})


@pytest.mark.parametrize(
    ("shape", "is_matrix"),
    [("2x2", True), ("64x2", True), ("1x64", False), ("64", False), ("2x1x2", True), ("1x1", False)],
)
def test_a_matrix_has_elements_along_two_dimensions(shape: str, is_matrix: bool) -> None:
    made = program(f"%x = tensor.broadcast %s : tensor<{shape}xint32>")
    (value,) = (op.result for op in made.root.walk() if op.name == "tensor.broadcast")
    assert _is_matrix(value) is is_matrix
