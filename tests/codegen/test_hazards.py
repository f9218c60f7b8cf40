"""Programs for each hazard of hazards.py: they compute what they should, and both Tritons compile them rightly."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.hazard_programs import PROGRAMS, HazardProgram
from tests.support.pipelined_programs import pipelined_program
from tiledsl.runtime import hazards
from tiledsl.runtime.rings import overwritten_tiles


def run(case: HazardProgram, target: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the program makes, and what it should make, in float64."""
    kernel = tiledsl.compile(case.program, target=target, pass_configs=dict(case.options))
    dtypes = [getattr(torch, each.dtype) for each in kernel.params]
    *shapes, last = [[int(size) for size in each.shape] for each in kernel.params]
    given = [torch.from_numpy(each).to(dtype).to(device) for each, dtype in zip(case.inputs(shapes), dtypes)]
    made = torch.zeros(last, dtype=torch.float32, device=device).to(dtypes[-1])
    kernel(*given, made)
    expected = case.expected(*[each.cpu().to(torch.float64).numpy() for each in given])
    return made.cpu().to(torch.float64), torch.from_numpy(expected.astype("float64"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    made, expected = run(PROGRAMS[name], "interpret", "cpu")
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    made = {}
    for name, case in PROGRAMS.items():
        made[name] = tiledsl.compile(case.program, target="cuda:90", pass_configs=dict(case.options)).module
    return made


@pytest.mark.parametrize("version", [pytest.param("newest", marks=pytest.mark.slow), "3.6"])
def test_compiles(
    modules: dict[str, Any], compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    for name, error, ttgir in compile_modules(modules, full=False, **options):
        assert not error, f"{name}: {error}\n{modules[name].source}"
        wrong = [*hazards.layout_hazards(ttgir), *overwritten_tiles(ttgir)]
        assert not wrong, f"{name}: {wrong}\n{modules[name].source}"


def test_pipelined_loops_overwrite_no_tile_under_a_product(compile_modules: Callable[..., Any]) -> None:
    """What tests/gpu/test_pipelines.py runs: the race needs many blocks, the copies that Triton keeps show it here."""
    made = {}
    for seed in range(4):
        program = tiledsl.parse(pipelined_program(seed).replace("STAGES", str(2 + seed % 2)))
        made[f"seed {seed}"] = tiledsl.compile(program, target="cuda:90").module
    compiled = compile_modules(made, full=False)
    for name, error, ttgir in compiled:
        assert not error and not list(overwritten_tiles(ttgir)), f"{name}: {error}\n{made[name].source}"
    assert sum("isAsync = true" in ttgir for *_, ttgir in compiled) > len(made) / 2


def test_every_hazard_has_a_program() -> None:
    listed = {each.name for each in hazards.HAZARDS}
    assert {each.hazard for each in PROGRAMS.values()} | {"linear-like-blocked"} == listed


@pytest.mark.parametrize(
    "name, carried", [("delayed", 3), ("delayed_tile", 2), ("delayed_bits", 2), ("delayed_flag", 4)]
)
def test_variables_that_begin_alike_are_carried(
    name: str, carried: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ttgir = tiledsl.compile(PROGRAMS[name].program, target="cuda:90").asm["ttgir"]
    loops = re.findall(r"= scf\.(?:for|while) .*?(?:iter_args)?\(([^)]*)\) (?:->|:)", ttgir)
    assert [len(each.split(",")) for each in loops] == [carried], ttgir


@T.prim_func
def counted(A: T.Tensor((16,), "float32"), O: T.Tensor((3, 4), "float32"), n: T.int32):
    with T.Kernel(3, threads=128) as bx:
        t = T.alloc_fragment((4,), "float32")
        k = T.alloc_var("int32", 0)
        T.clear(t)
        while k < n // 2 * (bx + 1):
            for i in T.Parallel(4):
                t[i] = t[i] + A[k + i]
            k = k + 1
        T.copy(t, O[bx, :])


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_whiles_that_a_launch_with_1_never_runs_compile(
    compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    module = tiledsl.compile(counted, target="cuda:90").module
    (kernel,) = module.kernels
    with_1 = dataclasses.replace(kernel, signature={**kernel.signature, "n": "constexpr"}, constexprs={"n": 1})
    modules = {"counted": dataclasses.replace(module, kernels=(with_1,))}
    ((_, error, ttgir),) = compile_modules(modules, full=False, **options)
    assert not error and "tt.load" not in ttgir


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_guarded_whiles_count(n: int) -> None:
    a = torch.arange(16, dtype=torch.float32)
    o = torch.full((3, 4), -1.0)
    tiledsl.compile(counted, target="interpret")(a, o, n)
    rows = torch.cat([a, torch.zeros(8)]).unfold(0, 4, 1)
    expected = torch.stack([rows[: n // 2 * (block + 1)].sum(0) for block in range(3)])
    torch.testing.assert_close(o, expected, rtol=0, atol=0)


@T.prim_func
def doubled_in_place(A: T.Tensor((16, 32), "float32"), O: T.Tensor((16, 32), "float32"), B: T.Tensor((16, 32), "float32")):  # fmt: skip # noqa: E501
    with T.Kernel(1, threads=128):
        t = T.alloc_shared((16, 32), "float32")
        T.copy(A, t)
        for i, j in T.Parallel(16, 32):
            t[i, j] = t[i, j] * 2.0
        T.copy(t, O)
        T.copy(A, t)
        T.copy(t, B)


@pytest.mark.parametrize("start, own", [(0, False), (1, False), (1, True), (4, False)])
def test_tensors_that_share_memory_share_it_when_descriptors_need_others(start: int, own: bool) -> None:
    kernel = tiledsl.compile(doubled_in_place, target="interpret", pass_configs={"select-access.mode": "tma"})
    assert "_with_aligned" in kernel.source
    memory = torch.arange(16 * 32 + 8, dtype=torch.float32)
    memory = memory[-memory.data_ptr() % 16 // 4 + start :][: 16 * 32].view(16, 32)
    given, target = memory.clone(), memory.clone() if own else memory
    copied = torch.zeros(16, 32)
    kernel(memory, target, copied)
    torch.testing.assert_close(target, given * 2, rtol=0, atol=0)
    torch.testing.assert_close(copied, given if own else given * 2, rtol=0, atol=0)
    torch.testing.assert_close(memory, given if own else given * 2, rtol=0, atol=0)


@T.prim_func
def tile_before_a_tensor(O: T.Tensor((3, 2), "int32"), P: T.Tensor((3, 2), "int32")):
    with T.Kernel(1, threads=32) as bx:
        t = T.alloc_fragment((1, 2), "int32")
        T.fill(t, 7)
        T.atomic_add(O[bx - 1, 0], t)
        T.copy(t, P[bx - 1, 0])


def test_a_tile_that_begins_before_a_tensor_is_not_taken_from_its_end() -> None:
    added, copied = torch.ones(3, 2, dtype=torch.int32), torch.ones(3, 2, dtype=torch.int32)
    tiledsl.compile(tile_before_a_tensor, target="interpret")(added, copied)
    assert added.tolist() == copied.tolist() == [[1, 1]] * 3


@T.prim_func
def view_outside(A: T.Tensor((4, 2), "float32"), O: T.Tensor((12,), "float32")):
    with T.Kernel(1, threads=32):
        T.annotate_safe_value({A: 3})
        V = T.reshape(A, (8,))
        for i in T.Parallel(12):
            O[i] = V[i]


def test_views_read_the_safe_value_outside() -> None:
    out = torch.zeros(12)
    tiledsl.compile(view_outside, target="interpret")(torch.ones(4, 2), out)
    assert out.tolist() == [1.0] * 8 + [3.0] * 4
