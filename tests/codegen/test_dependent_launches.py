"""launch_pdl: kernels that begin while the one before ends, and wait for what it wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.support import gluon_machine
from tiledsl.certificate.translation import check_translation
from tiledsl.codegen.kernels import AWAIT
from tiledsl.codegen.kernels import TRIGGER as LETS_BEGIN
from tiledsl.errors import TileError

PDL = {"lower-to-triton.launch_pdl": 1}
GLUON = {"select-emitter.backend": "gluon"}
SIZES = {"M": 256, "N": 128, "K": 128, "block_M": 128, "block_N": 128, "block_K": 64}


def product(target: str = "cuda:90", splits: int = 1, **pass_configs: Any) -> tiledsl.Kernel:
    options = {**matmul.options, "target": target, "pass_configs": pass_configs}
    return tiledsl.jit(**options)(matmul.function).compile(**SIZES, splits=splits)


def doubled(**options: Any) -> T.PrimFunc:
    @T.prim_func
    def doubled(X: T.Tensor((256,), "float32"), Y: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128, **options) as bx:
            for i in T.Parallel(128):
                Y[bx * 128 + i] = X[bx * 128 + i] * 2

    return doubled


@pytest.mark.parametrize("more", [{}, GLUON], ids=["triton", "gluon"])
def test_the_wait_comes_before_all_else(more: dict[str, Any]) -> None:
    kernel = product(**PDL, **more)
    assert kernel.source.count("launch_pdl=True") == 1
    before, after = kernel.source.split("    gdc_wait()")
    entry = before[before.rindex("@") :]
    reads = (".load(", "tl.load", "_load_box", "gl.load", ".store(")
    assert not any(read in entry for read in reads)
    assert any(read in before + after for read in reads)
    ptx = kernel.asm["ptx"]
    assert ptx.count("griddepcontrol.wait") == 1 and kernel.compiled["matmul_kernel"].metadata["launch_pdl"]


def test_each_kernel_of_a_program_waits() -> None:
    source = product(splits=2, **PDL).source
    assert source.count("    gdc_wait()") == source.count("launch_pdl=True") == 2


def test_nothing_is_written_unless_asked() -> None:
    assert "gdc_wait" not in product().source and "launch_pdl" not in product().source


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "interpret"])
def test_where_there_are_no_such_launches_it_has_no_effect(target: str) -> None:
    kernel = tiledsl.compile(doubled(launch_pdl=True), target=target, out_idx=-1)
    assert "gdc_wait" not in kernel.source and "launch_pdl" not in kernel.source
    if target == "interpret":
        x = torch.arange(256.0)
        assert torch.equal(kernel(x), x * 2)


@pytest.mark.parametrize("given", [True, 1])
def test_a_program_says_it(given: object) -> None:
    kernel = tiledsl.compile(doubled(launch_pdl=given), target="cuda:90", out_idx=-1)
    assert "    gdc_wait()" in kernel.source and "launch_pdl=True" in kernel.source
    kernel = tiledsl.compile(doubled(launch_pdl=False), target="cuda:90", out_idx=-1)
    assert "gdc_wait" not in kernel.source


@T.prim_func
def chain(X: T.Tensor((256,), "float32"), Y: T.Tensor((256,), "float32"), Z: T.Tensor((256,), "float32")):
    with T.Kernel(2, threads=128) as bx:
        for i in T.Parallel(128):
            Y[bx * 128 + i] = X[bx * 128 + i] + 1
        T.pdl_trigger()
    with T.Kernel(2, threads=128) as bx:
        T.pdl_sync()
        for i in T.Parallel(128):
            Z[bx * 128 + i] = Y[bx * 128 + i] * 2


def test_a_kernel_that_syncs_waits_at_its_start_and_one_that_triggers_does_not() -> None:
    source = tiledsl.compile(chain, target="cuda:90").source
    first, second = source.split("def chain_kernel_1(")
    assert "    gdc_wait()" not in first and second.count("    gdc_wait()") == second.count("launch_pdl=True") == 1
    assert "import gdc_launch_dependents, gdc_wait\n" in first and second.count("    gdc_launch_dependents()") == 1
    assert second.index("gdc_launch_dependents()") < second.index("def chain_kernel_2(") < second.index("gdc_wait()")
    x, y, z = torch.arange(256.0), torch.zeros(256), torch.zeros(256)
    assert all("gdc" not in tiledsl.compile(chain, target=each).source for each in ("interpret", "cuda:80"))
    tiledsl.compile(chain, target="interpret")(x, y, z)
    assert torch.equal(z, (x + 1) * 2)


@pytest.mark.parametrize("more", [{}, GLUON], ids=["triton", "gluon"])
def test_a_kernel_triggers_behind_its_own_wait(more: dict[str, Any]) -> None:
    @T.prim_func
    def triggering(
        A: T.Tensor((128, 64), "float16"), B: T.Tensor((64, 128), "float16"), C: T.Tensor((128, 128), "float32")
    ):
        with T.Kernel(1, threads=256, launch_pdl=True):
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(1, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)
            T.pdl_trigger()

    kernel = tiledsl.compile(triggering, target="cuda:90", pass_configs=more)
    lines = [line.strip().partition("  #")[0] for line in kernel.source.splitlines()]
    assert lines[lines.index("gdc_wait()") + 1] == "gdc_launch_dependents()" and lines.count("gdc_wait()") == 1
    ptx = kernel.asm["ptx"]
    assert ptx.index("griddepcontrol.wait") < ptx.index("griddepcontrol.launch_dependents")


WAIT, TRIGGER = f"    {AWAIT}\n", f"    {LETS_BEGIN}\n"
EARLY = "global memory is touched before the kernel before is waited for"
HEADS = {  # of the two kernels: the first one's, the second one's, and what is wrong with them
    "both wait": (WAIT + TRIGGER, WAIT, ""),
    "the second begins in time": (WAIT, WAIT, ""),
    "the third may begin too": (WAIT, WAIT + TRIGGER, ""),
    "the first reads what others write": ("", WAIT, EARLY),
    "the second reads what the first writes": (WAIT + TRIGGER, "", EARLY),
    "the second reads another tensor": (WAIT + TRIGGER, "    tl.load(X)\n" + WAIT, ""),
    "the second writes another tensor": (WAIT + TRIGGER, "    tl.store(X, tl.load(X))\n" + WAIT, EARLY),
    "the second begins before what was before": (TRIGGER + WAIT, WAIT, "the next kernel may begin before"),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_certificate_knows_when_kernels_have_ended(name: str) -> None:
    first, second, fault = HEADS[name]
    kernel = tiledsl.compile(chain, target="cuda:90", pass_configs=PDL)
    source = kernel.source.replace(WAIT + TRIGGER, first, 1)
    front, back = source.split("def chain_kernel_2(Y, Z):\n")
    assert back.startswith(WAIT)
    text = f"{front}def chain_kernel_2(Y, Z, X):\n{second}{back.removeprefix(WAIT)}"
    assert "chain_kernel_2[(2,)](Y, Z, num" in text
    kernel.module = replace(kernel.module, source=text.replace("[(2,)](Y, Z, num", "[(2,)](Y, Z, X, num"))
    checks = check_translation(kernel, passes=False)
    assert {each.status for each in checks} == ({"failed"} if fault else {"tested"})
    assert all(fault in each.detail for each in checks)


@pytest.mark.parametrize(("given", "waits"), [(True, True), (False, False), (None, False)])
def test_a_configuration_says_it(given: object, waits: bool) -> None:
    function = tiledsl.jit(**{**matmul.options, "target": "cuda:90"})(matmul.function)
    source = function.kernel_for({}, {**SIZES, "launch_pdl": given}).source
    assert ("gdc_wait" in source) == ("launch_pdl=True" in source) == waits


@pytest.mark.parametrize("wrong", [2, "yes", -1])
def test_other_values_are_refused(wrong: object) -> None:
    with pytest.raises(TileError, match=r"launch_pdl is .*; it must be True or False"):
        tiledsl.compile(doubled(launch_pdl=wrong), target="cuda:90")


def test_gluon_gives_the_same() -> None:
    a, b = torch.randn(256, 128, dtype=torch.float16), torch.randn(128, 128, dtype=torch.float16)
    out = torch.full((256, 128), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(product(**PDL, **GLUON).source, "matmul_into", a, b, out)
    want = a.float() @ b.float().T
    assert float((out.float() - want).norm() / want.norm()) < 1e-3
