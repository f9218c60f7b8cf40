"""Tiles whose rows come in fours, so that lanes need not exchange what they make operands of 8 bits of."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import gluon_machine
from tiledsl.analysis.gluon.words import in_fours, may_come_in_fours, order_in_fours, strides_in_fours
from tiledsl.dialects import triton
from tiledsl.errors import TileError
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import parse_program
from tiledsl.passes.schedule_loops import ScheduleLoops

E4M3 = "float8_e4m3fn"
TILES, KEYS = 3, 64


def program(what: str = "", dim: int = 64, start: int = 0, keys: int = 200) -> Any:
    """O = rounded(Q K[0, 1]^T) V^T over three tiles of keys, with something of each column as `what` says."""

    @T.prim_func
    def weighted(
        Q: T.Tensor((128, dim), E4M3),
        K: T.Tensor((2, 2, keys, dim), E4M3),
        V: T.Tensor((64, 256), E4M3),
        bias: T.Tensor((256,), "float32"),
        head: T.Tensor((1,), "int32"),
        O: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256) as _:
            q = T.alloc_shared((128, dim), E4M3)
            k = T.alloc_shared((KEYS, dim), E4M3)
            v = T.alloc_shared((64, KEYS), E4M3)
            scores = T.alloc_fragment((128, KEYS), "float32")
            weights = T.alloc_fragment((128, KEYS), E4M3)
            acc = T.alloc_fragment((128, 64), "float32")
            most = T.alloc_fragment((128, KEYS), "float32")
            if what == "same":
                T.copy(K[1, 1, 0, 0], q)
            else:
                T.copy(Q[0, 0], q)
            T.clear(acc)
            T.clear(most)
            for tile in T.Pipelined(TILES, num_stages=2):
                T.copy(K[1, head[0] if what == "head" else 1, tile * KEYS + start, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(128, KEYS):
                    if what == "bias":
                        scores[i, j] += bias[tile * KEYS + j]
                    if what == "columns":
                        scores[i, j] = T.if_then_else(j % 8 < 3, scores[i, j], T.cast(tile * KEYS + j, "float32"))
                    if what == "rows":
                        scores[i, j] += T.cast(i % 4, "float32")
                if what == "branch" and tile == 1:
                    for i, j in T.Parallel(128, KEYS):
                        scores[i, j] = T.if_then_else(j > i % 5, scores[i, j], 3.0)
                if what == "carried":
                    for i, j in T.Parallel(128, KEYS):
                        most[i, j] = T.max(most[i, j], scores[i, j])
                    T.copy(most, weights)
                else:
                    T.copy(scores, weights)
                T.copy(V[0, tile * KEYS], v)
                T.gemm(weights, v, acc, transpose_B=True)
            T.copy(acc, O[0, 0])

    return weighted


def compiled(*given: Any, **options: Any) -> tiledsl.Kernel:
    passes = {"select-emitter.backend": "gluon"}
    return tiledsl.compile(program(*given, **options), target="cuda:90", pass_configs=passes)


def inputs(dim: int = 64, keys: int = 200) -> list[torch.Tensor]:
    """Integers, whose products are exact."""
    torch.manual_seed(1)
    q, k, v = (
        torch.randint(-2, 3, shape).to(torch.float8_e4m3fn) for shape in ((128, dim), (2, 2, keys, dim), (64, 256))
    )
    return [q, k, v, torch.arange(256.0), torch.ones(1, dtype=torch.int32), torch.full((128, 64), float("nan"))]


def expected(given: list[torch.Tensor], what: str, start: int) -> torch.Tensor:
    q, k, v, bias = (each.float() for each in given[:4])
    held = torch.zeros(TILES * KEYS, q.shape[1])
    found = k[1, 1, start : start + TILES * KEYS]
    held[: len(found)] = found
    if what == "same":
        q = k[1, 1, :128]
    scores = q @ held.T
    i, j = torch.arange(128)[:, None], torch.arange(TILES * KEYS)
    if what == "bias":
        scores += bias[: TILES * KEYS]
    if what == "columns":
        scores = torch.where(j % 8 < 3, scores, j.float())
    if what == "rows":
        scores += (i % 4).float()
    if what == "branch":
        scores = torch.where((j // KEYS != 1) | (j % KEYS > i % 5), scores, 3.0)
    if what == "carried":
        scores = scores.clamp(min=0).unflatten(1, (TILES, KEYS)).cummax(1).values.flatten(1)
    return scores.to(torch.float8_e4m3fn).float() @ v[:, : TILES * KEYS].T


@pytest.mark.parametrize(
    ("what", "options", "comes_in_fours"),
    [
        ("", {}, True),
        ("rows", {}, True),
        ("columns", {}, True),
        ("branch", {}, True),
        ("", {"start": 8}, True),
        ("", {"start": 2}, False),  # between the fours
        ("", {"keys": 198}, False),
        ("", {"dim": 128}, True),
        ("", {"dim": 256}, False),  # rows are swizzled in two parts
        ("carried", {}, False),
        ("same", {}, False),  # rows of Q come as they are, through the same descriptor
        ("bias", {}, False),  # which is not known to come in another order
        ("head", {}, False),  # outside of the second dimension there would be something else
    ],
    ids=str,
)
def test_order(what: str, options: dict[str, int], comes_in_fours: bool) -> None:
    kernel = compiled(what, **options)
    source = kernel.source
    assert ("_exchanged(" in source) != comes_in_fours
    assert ("in_fours = true" in kernel.ir("triton")) == comes_in_fours
    assert ("_in_fours(gl.arange(" in source) == (comes_in_fours and what in ("columns", "branch"))
    given = inputs(options.get("dim", 64), options.get("keys", 200))
    gluon_machine.run_gluon(source, "weighted", *given)
    assert torch.equal(given[-1], expected(given, what, options.get("start", 0)))


@functools.cache
def columns_as_text() -> str:
    return compiled("columns").ir("triton")


def before(line: str, text: str) -> tuple[str, str]:
    return line, f"{text}\n{line}"


START = "[%4, %4, %8, %2]"
ROWS, ITEMS = "tensor<64x64xfloat32>", "tensor<64x64xfloat8_e4m3fn>"
K_LOAD = f'%k = triton.load_block %K_tiles_1{START} {{axes = (2, 3), ring = "k", in_fours = true}} : {ITEMS}\n'
HERE = "%4, %4, %2, %2"
UNKNOWN = "%f = arith.constant {value = 7.0} : float32\n%n = arith.cast %f : int32"


@pytest.mark.parametrize(
    ("changes", "comes_in_fours"),
    [
        ([], True),
        ([before("%weights =", '%m = tensor.reduce %scores {kind = "max", axis = 1} : tensor<64xfloat32>')], True),
        ([before("%weights =", '%m = tensor.reduce %scores {kind = "max", axis = 0} : tensor<64xfloat32>')], False),
        ([before("%weights =", "%m = tensor.transpose %scores {permutation = (1, 0)} : " + ROWS)], False),
        ([before("%weights =", 'triton.store_block %scores, %O_tiles_1[%8, %2] {axes = (0, 1), ring = "x"}')], False),
        # What lies outside of the first dimension is outside of all; of the others none may.
        ([before("%k =", UNKNOWN), (START, "[%n, %4, %8, %2]")], True),
        ([before("%k =", UNKNOWN), (START, "[%4, %n, %8, %2]")], False),
        ([before("%k =", "%n = arith.constant {value = 2} : int32"), (START, "[%4, %n, %8, %2]")], False),
        ([before("%k =", "%n = arith.constant {value = -1} : int32"), (START, "[%4, %n, %8, %2]")], False),
        ([before("%k =", "%n = arith.constant {value = 0} : int32"), (START, "[%4, %n, %8, %2]")], True),
        ([("axes = (2, 3)", "axes = (1, 3)")], False),
        ([before("%k =", "%n = arith.add %8, %4 : int32"), (START, "[%4, %4, %n, %2]")], False),
        ([(f"      {K_LOAD}", ""), before("%acc_1 =", K_LOAD.replace("%8", "%2"))], False),  # for all turns
        ([before("%v =", f'%x = triton.load_block %K_tiles_1[{HERE}] {{axes = (2, 3), ring = "v"}} : {ITEMS}')], False),
        ([before("%k_t =", f"%x = arith.neg %k : {ITEMS}")], False),  # something else reads the tile
        ([before("%scores =", f"%x = arith.neg %k_t : {ITEMS}")], False),
        ([("%scores = tensor.dot %q, %k_t, %acc", "%scores = tensor.dot %q, %k_t, %acc_2")], False),  # what is carried
    ],
    ids=str,
)  # fmt: skip
def test_what_sees_the_order_of_columns(changes: list[tuple[str, str]], comes_in_fours: bool) -> None:
    text = columns_as_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (launch,) = of_kinds(parse_op(text).walk(), triton.LaunchOp)
    found = {op.out.name for op in may_come_in_fours(launch)}
    assert found - {"m"} == ({"k", "j"} if comes_in_fours else set())
    assert ("m" in found) == (comes_in_fours and "%m =" in text)


@pytest.mark.parametrize(("kind", "fours", "named"), [("sum", True, True), ("max", True, False), ("sum", False, False)])
def test_sums_of_columns_in_fours_are_in_another_order(kind: str, fours: bool, named: bool) -> None:
    reduction = f'%m = tensor.reduce %scores {{kind = "{kind}", axis = 1}} : tensor<64xfloat32>\n%weights ='
    made = parse_program(columns_as_text().replace("%weights =", reduction))
    assert ScheduleLoops(fours=fours).allowances(made) == ({"reassociation"} if named else set())


def test_view() -> None:
    assert in_fours((2, 3, 8, 16)) == (6, 2, 2, 2, 16) and strides_in_fours((2, 3, 8, 16)) == (128, 32, 64, 16, 1)
    assert in_fours((8, 16)) == (2, 2, 2, 16) and strides_in_fours((8, 16)) == (32, 64, 16, 1)
    rows = torch.arange(8).repeat_interleave(16).as_strided(in_fours((8, 16)), strides_in_fours((8, 16)))
    assert rows[..., 0].flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7] == order_in_fours(8)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("axis = 1, in_fours = true", "axis = 1", "its columns come in fours"),
        ('ring = "k", in_fours = true', 'ring = "k"', "its descriptor sees another order"),
        ('ring = "v"', 'ring = "v", in_fours = true', "and these cannot"),
        ("swizzle = 64, in_fours = true", "swizzle = 64", "its descriptor sees another order"),
    ],
)
def test_edited(old: str, new: str, what: str) -> None:
    ir = columns_as_text()
    assert ir.count(old) == 1
    with pytest.raises(TileError, match=what) as refused:
        _ = tiledsl.resume(ir.replace(old, new), "schedule-loops", target="cuda:90").source
    assert any("the rule 'fours'" in note for note in refused.value.notes)


def test_not_wanted() -> None:
    passes = {"select-emitter.backend": "gluon", "schedule-loops.fours": False}
    kernel = tiledsl.compile(program(), target="cuda:90", pass_configs=passes)
    assert "_exchanged(_words(" in kernel.source and "in_fours" not in kernel.ir("triton")


def test_without() -> None:
    ir = compiled("columns").ir("triton")
    assert ir.count(", in_fours = true") == 3
    kernel = tiledsl.resume(ir.replace(", in_fours = true", ""), "schedule-loops", target="cuda:90")
    assert "_exchanged(_words(" in kernel.source and "_in_fours" not in kernel.source
    given = inputs()
    gluon_machine.run_gluon(kernel.source, "weighted", *given)
    assert torch.equal(given[-1], expected(given, "columns", 0))
