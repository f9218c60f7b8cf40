"""carry-loads: what comes a turn ahead, that results stay the same, and what is emitted."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import after, filecheck, program, stays_in_gluon
from tests.support.programs import check_pass, inputs_for
from tiledsl.passes.carry_loads import CarryLoads
from tiledsl.runtime.target import Target

PARAMETERS = "A: 32*128*float16, W: 128*32*float16, S: 4*32*float32, R: 16*4*float32, P: 4*float32, C: 32*32*float32"
HOPPER = Target("cuda", 90)


def loop(
    beside: str = "%s = tile.load %S[%k, %j] : tensor<1x32xfloat32>", *, bounds: str = "%c0, %c4, %c1",
    asked: str = "{num_stages = 3}", rows: int = 16, behind: str = "",
) -> str:  # fmt: skip
    """A product for each turn, times %s. It is loaded in the same turn, or `beside` says how else it is made."""
    return f"""
%zero = arith.constant {{value = 0.0}} : tensor<{rows}x32xfloat32>
%r = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
%d = tensor.iota {{axis = 1}} : tensor<1x32xint32>
%e = tensor.iota {{axis = 0}} : tensor<32x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x32xint32>
%sum = scf.for {bounds}[%zero] {asked} : tensor<{rows}x32xfloat32> (%k: int32, %t: tensor<{rows}x32xfloat32>) {{
  %at = arith.mul %k, %c32 : int32
  %i = arith.add %at, %d : tensor<1x32xint32>
  %o = arith.add %at, %e : tensor<32x1xint32>
  %a = tile.load %A[%r, %i] : tensor<{rows}x32xfloat16>
  %w = tile.load %W[%o, %j] : tensor<32x32xfloat16>
  {beside}
  %p = tensor.dot %a, %w, %zero : tensor<{rows}x32xfloat32>
  %q = arith.mul %p, %s : tensor<{rows}x32xfloat32>
  %n = arith.add %t, %q : tensor<{rows}x32xfloat32>
  {behind}
  scf.yield [%n]
}}
tile.store %sum, %C[%r, %j]
"""


def made(text: str, target: Any = HOPPER, **options: Any) -> list[str]:
    root = program(text, parameters=PARAMETERS, grid=(1,)).root
    check_pass(CarryLoads(**{"enabled": True, **options}), root, inputs_for(root), target=target)
    return after(CarryLoads(**{"enabled": True, **options}), text, parameters=PARAMETERS, grid=(1,), target=target)


def carried(text: str, target: Any = HOPPER, **options: Any) -> int:
    (head,) = (line for line in made(text, target, **options) if "scf.for" in line)
    return head.partition("(")[2].count(",") - 1


def test_the_next_turns_row() -> None:
    filecheck(
        [line for line in made(loop()) if any(each in line for each in ("%S[", "scf", "arith.min", "%q ="))],
        """
        [[FIRST:%.*]] = tile.load %S[%c0, {{.*}}] : tensor<1x32xfloat32>
        {{.*}} = scf.for %c0, %c4, %c1[%c0p0, [[FIRST]]] {{.*}}, [[NOW:%.*]]: tensor<1x32xfloat32>) {
        [[AHEAD:%.*]] = arith.min {{.*}} : int32
        [[NEXT:%.*]] = tile.load %S[[[AHEAD]], {{.*}}] : tensor<1x32xfloat32>
        %q = arith.mul %p, [[NOW]] : tensor<16x32xfloat32>
        scf.yield [%n, [[NEXT]]]
        """,
    )


@pytest.mark.parametrize(
    ("beside", "count"),
    [
        ("%s = tile.load %R[%r, %k] : tensor<16x1xfloat32>", 1),
        ("%u = arith.add %k, %at : int32\n%v = arith.min %u, %c3 : int32\n"
         "%s = tile.load %S[%v, %j] : tensor<1x32xfloat32>", 1),
        ("%s = tile.load %P[%k] : float32", 0),  # one value: nothing is copied for threads
        ("%v = arith.sub %c3, %k : int32\n%s = tile.load %S[%v, %j] : tensor<1x32xfloat32>", 1),
        ("%z = tile.load %A[%r, %i] : tensor<16x32xfloat16>\n%s = arith.cast %z : tensor<16x32xfloat32>", 0),  # a tile
    ],
)  # fmt: skip
def test_what_is_carried(beside: str, count: int) -> None:
    assert carried(loop(beside)) == count


def test_what_operands_are_made_of_stays() -> None:
    text = loop("%s = tile.load %S[%k, %j] : tensor<1x32xfloat32>\n%h = arith.cast %s : tensor<1x32xfloat16>\n"
                "%y = arith.mul %w, %h : tensor<32x32xfloat16>")  # fmt: skip
    assert carried(text) == 1 and carried(text.replace("tensor.dot %a, %w", "tensor.dot %a, %y")) == 0


@pytest.mark.parametrize(
    "other",
    [
        loop(rows=32),
        loop(asked=""),
        loop(asked="{num_stages = 1}"),
        loop(bounds="%c0, %c4, %c2"),
        loop(behind="%x = arith.mul %q, %q : tensor<16x32xfloat32>\ntile.store %x, %C[%r, %j]\n"
             "%y = tile.load %C[%r, %j] : tensor<16x32xfloat32>"),  # something that is loaded is written
        loop().replace("tensor.dot %a, %w, %zero", "arith.mul %zero, %zero"),
    ],
)  # fmt: skip
def test_other_loops_stay(other: str) -> None:
    assert carried(other) == 0


def test_no_turn() -> None:
    assert carried(loop(bounds="%c0, %c0, %c1")) == 1


def test_other_targets() -> None:
    assert carried(loop(), enabled=False) == carried(loop(), Target("cuda", 80)) == carried(loop(), None) == 0
    assert stays_in_gluon(CarryLoads(enabled=True), program(loop(), parameters=PARAMETERS, grid=(1,), target=HOPPER))


@pytest.mark.parametrize("scales", [4, 3])
def test_emitted_and_verified(scales: int) -> None:
    """Where there are fewer factors than turns, the last turn's are masked, as they were."""

    @T.prim_func
    def scaled(
        A: T.Tensor((16, 256), "float16"), W: T.Tensor((32, 256), "float16"), S: T.Tensor((scales, 32), "float32"),
        C: T.Tensor((16, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((16, 64), "float16")
            w = T.alloc_shared((32, 64), "float16")
            part = T.alloc_fragment((16, 32), "float32")
            total = T.alloc_fragment((16, 32), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(W[0, k * 64], w)
                T.gemm(a, w, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(16, 32):
                    total[i, j] += part[i, j] * S[k, j]
            T.copy(total, C)

    kernel = tiledsl.compile(scaled, target="cuda:90", pass_configs={"carry-loads.enabled": True})
    assert "ahead = tl.minimum(k + 1, 3)" in kernel.source
    certificate = kernel.verify(2.0)
    assert certificate.ok, certificate.reason
