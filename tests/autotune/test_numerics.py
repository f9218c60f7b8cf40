"""numerics="same-bits" and "batch-invariant": who may win, who is taken out and why."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.kernels import attention, gemm
from tests.passes.ir_cases import kernel_of, program
from tiledsl.autotuner.tuned.file import path_of, read_or_new
from tiledsl.autotuner.verifying import bits
from tiledsl.autotuner.verifying.bit_class import _advance, _extents, _Reader, program_class
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.runtime.target import Target


def product_builder(M, N, K, block_M=16, block_K=16, num_stages=2, variant="chain"):
    @T.prim_func
    def product(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, block_M)) as (bx, by):
            A_s = T.alloc_shared((block_M, block_K), "float32")
            B_s = T.alloc_shared((block_K, 16), "float32")
            acc = T.alloc_fragment((block_M, 16), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                if variant == "spread":  # K's elements come again
                    T.copy(A[by * block_M, k * (bx + 1)], A_s)
                else:
                    T.copy(A[by * block_M, k * block_K], A_s)
                T.copy(B[k * block_K, bx * 16], B_s)
                if variant == "squared":
                    for i, j in T.Parallel(block_M, block_K):
                        A_s[i, j] = A_s[i, j] * A_s[i, j]
                T.gemm(A_s, B_s, acc)
            if variant == "rounded":
                for i, j in T.Parallel(block_M, 16):
                    acc[i, j] = T.cast(T.cast(acc[i, j], "bfloat16"), "float32")
            T.copy(acc, C[by * block_M, bx * 16])

    return product


def sums_builder(M, N, block=1, chunk=0, variant="sum"):
    @T.prim_func
    def sums(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block)) as bx:
            total = T.alloc_fragment((block,), "float32")
            if variant == "atomic":
                row = T.alloc_fragment((block, N), "float32")
                T.copy(A[bx * block, 0], row)
                T.reduce_sum(row, total, dim=1)
                for i in T.Parallel(block):
                    T.atomic_add(B[bx * block + i], total[i])
            elif chunk:
                part = T.alloc_fragment((block, chunk), "float32")
                some = T.alloc_fragment((block,), "float32")
                T.clear(total)
                for k in T.serial(T.ceildiv(N, chunk)):
                    if variant == "strided":
                        for i, j in T.Parallel(block, chunk):
                            part[i, j] = A[bx * block + i, j * (N // chunk) + k]
                    else:
                        T.copy(A[bx * block, k * chunk], part)
                    T.reduce_sum(part, some, dim=1)
                    for i in T.Parallel(block):
                        total[i] += some[i]
                T.copy(total, B[bx * block])
            else:
                row = T.alloc_fragment((block, N), "float32")
                T.copy(A[bx * block, 0], row)
                T.reduce_sum(row, total, dim=1)
                T.copy(total, B[bx * block])

    return sums


product = tiledsl.jit(out_idx=-1)(product_builder)
sums = tiledsl.jit(out_idx=-1)(sums_builder)


def times(A: Any, B: Any) -> Any:
    return A @ B


def row_sums(A: Any) -> Any:
    return A.sum(1)


def class_of(function: Any, target: str = "cuda:90", pass_configs: Any = None, **values: Any) -> Any:
    config = {} if pass_configs is None else {"pass_configs": pass_configs}
    kernel = function.kernel_for(function._bind((), values, partial=True), config, Target.parse(target))
    return program_class(kernel)


def test_what_a_loop_stores_tells_programs_apart() -> None:
    def builder(doubled):
        @T.prim_func
        def stored(A: T.Tensor((64, 16), "float32"), B: T.Tensor((64, 16), "float32")):
            with T.Kernel(1):
                x = T.alloc_fragment((16,), "float32")
                for k in T.serial(64):
                    T.copy(A[k, 0], x)
                    for i in T.Parallel(16):
                        x[i] = x[i] * 2.0 if doubled else x[i] / 3.0
                    T.copy(x, B[k, 0])

        return stored

    function = tiledsl.jit(out_idx=-1)(builder)
    one, other = class_of(function, doubled=True), class_of(function, doubled=False)
    assert one == class_of(function, doubled=True) != other


def test_what_a_branch_stores_tells_programs_apart() -> None:
    def builder(doubled):
        @T.prim_func
        def stored(A: T.Tensor((4, 16), "float32"), B: T.Tensor((4, 16), "float32"), n: T.int32):
            with T.Kernel(4) as bx:
                x = T.alloc_fragment((16,), "float32")
                T.copy(A[bx, 0], x)
                if bx < n:
                    for i in T.Parallel(16):
                        B[bx, i] = x[i] * 2.0 if doubled else x[i] / 3.0

        return stored

    function = tiledsl.jit(builder)
    one, other = class_of(function, doubled=True), class_of(function, doubled=False)
    assert one == class_of(function, doubled=True) != other


GEMM = {"M": 512, "N": 500, "K": 250, "block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 3, "threads": 128}


@pytest.mark.parametrize(
    "changed",
    [{"block_M": 128}, {"block_N": 128}, {"block_K": 64}, {"block_K": 96}, {"num_stages": 2}, {"M": 1}],
)  # fmt: skip
def test_tiles_of_a_product_are_one_class(changed: dict[str, Any]) -> None:
    assert class_of(gemm, **{**GEMM, **changed}) == class_of(gemm, **GEMM)


def test_tiles_along_wide_indices_are_one_class() -> None:
    def builder(block):
        @T.prim_func
        def product(
            A: T.Tensor((16, 128), "float16"), B: T.Tensor((128, 16), "float16"), C: T.Tensor((16, 16), "float32")
        ):
            with T.Kernel(1):
                a, b = T.alloc_shared((16, block), "float16"), T.alloc_shared((block, 16), "float16")
                acc = T.alloc_fragment((16, 16), "float32")
                T.clear(acc)
                for k in T.Pipelined(128 // block, num_stages=2):
                    for i, j in T.Parallel(16, block):
                        a[i, j] = A[i, T.cast(k * block + j, "int64")]
                    T.copy(B[k * block, 0], b)
                    T.gemm(a, b, acc)
                T.copy(acc, C)

        return product

    function = tiledsl.jit(out_idx=-1)(builder)
    assert class_of(function, block=16) == class_of(function, block=32)


@pytest.mark.parametrize(
    ("value", "found"),
    [("%rows", (16, 1)), ("%tile", (16, 16)), ("%apart", None), ("%skipping", None)],
)
def test_how_an_index_advances_with_its_loop(value: str, found: tuple[int, int] | None) -> None:
    body = f"""
    scf.for %c0, %c4, %c1 (%k: int32) {{
      %i = tensor.iota {{axis = 0}} : tensor<16xint32>
      %late = arith.add %k, %bx : int32
      %rows = arith.mul %late, %c16 : int32
      %tile = arith.add %i, %rows : tensor<16xint32>
      %apart = arith.mul %i, %c2 : tensor<16xint32>
      %skipping = arith.add %apart, %rows : tensor<16xint32>
      %asked = tile.load %N[{value}] : {"int32" if value == "%rows" else "tensor<16xint32>"}
      scf.yield }}"""
    ops = list(program(body).root.walk())
    (load,) = of_kinds(ops, tile.LoadOp)
    (loop,) = of_kinds(ops, scf.ForOp)
    assert _advance(load.indices[0], loop.index) == found


def test_what_rounds_or_adds_otherwise_is_another_class() -> None:
    own = class_of(gemm, **GEMM)
    others = [
        class_of(gemm, **{**GEMM, "dtype": "bfloat16"}),
        class_of(gemm, **{**GEMM, "out": "float32"}),
        class_of(gemm, **GEMM, pass_configs={"split-k.splits": 2}),
        class_of(gemm, **GEMM, pass_configs={"split-k.splits": 4}),
        class_of(gemm, **{**GEMM, "block_K": 64}, pass_configs={"split-k.splits": 4}),
        class_of(gemm, **GEMM, pass_configs={"split-k.streams": 100}),
        class_of(gemm, **GEMM, pass_configs={"select-emitter.fast_math": False}),
        class_of(gemm, "cuda:100", **GEMM),
        class_of(product, M=64, N=64, K=64),
        class_of(product, M=64, N=64, K=64, variant="squared"),
        class_of(product, M=64, N=64, K=64, variant="rounded"),
        class_of(product, M=64, N=64, K=64, variant="spread"),
    ]
    signatures = [own.signature, *(each.signature for each in others)]
    assert len(set(signatures)) == len(signatures)
    assert others[5].by_rows and not own.by_rows
    assert class_of(gemm, **GEMM, pass_configs={"map-grid.group_m": 4, "select-access.mode": "pointer"}) == own


def test_loops_that_carry_sums_count_with_their_extents() -> None:
    signature = lambda **values: class_of(sums, M=64, N=256, **values).signature
    assert signature(block=1) == signature(block=4)
    assert len({signature(), signature(chunk=64), signature(chunk=128), signature(chunk=32)}) == 4
    assert signature(chunk=64) != class_of(sums, M=64, N=512, chunk=64).signature  # more of them
    assert signature(chunk=64) != signature(chunk=64, variant="strided")  # the terms come in another order
    whole = {"batch": 1, "heads": 2, "seq": 512, "dim": 64, "is_causal": True, "num_stages": 2, "threads": 128}
    rows = [class_of(attention, **whole, block_M=m, block_N=n).signature for m, n in ((64, 64), (128, 64), (64, 32))]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize(
    ("kind", "dtype", "varies"),
    [
        ("add", "float32", "atomic add of float32 into A#0: blocks come in any order"), ("add", "int32", ""),
        ("max", "float32", ""), ("min", "float32", ""), ("or", "int32", ""),
    ],
)  # fmt: skip
def test_atomics_whose_order_does_not_matter(kind: str, dtype: str, varies: str) -> None:
    value = "%f" if dtype == "float32" else "%s"
    body = f'%old = tile.atomic {value}, %A[%c0] {{kind = "{kind}"}} : {dtype}'
    reader = _Reader(is_simulated=False)
    reader.kernel(kernel_of(program(body, parameters=f"A: 8*{dtype}, f: float32, s: int32")))
    assert reader.varies == varies


def test_where_sums_are_cut() -> None:
    body = """
    %zero = arith.constant {value = 0.0} : tensor<16x32xfloat32>
    %a = arith.constant {value = 0.5} : tensor<16x8xfloat32>
    %b = arith.constant {value = 0.5} : tensor<8x32xfloat32>
    %r = scf.for %c0, %s, %c2[%zero] : tensor<16x32xfloat32> (%k: int32, %acc: tensor<16x32xfloat32>) {
      %d = tensor.dot %a, %b, %acc : tensor<16x32xfloat32>
      scf.yield [%d] }"""
    root = program(body).root
    assert _extents(root, all_of_them=False) == [[0, None, 2], 8]
    assert _extents(root, all_of_them=True) == [[0, None, 2], ((16, 8), (8, 32))]


def test_atomic_additions_have_no_bits() -> None:
    assert "atomic add of float32 into B" in class_of(sums, M=64, N=64, variant="atomic").varies
    wanted = tiledsl.autotune(configs=[{"variant": "atomic"}], numerics="same-bits", ref_prog=row_sums, cache=False)
    with pytest.raises(tiledsl.TileError, match="cannot keep its bits"):
        wanted(sums)(16, 16)


def test_in_the_interpreter_products_depend_on_whole_tiles() -> None:
    found = {class_of(product, "interpret", M=64, N=64, K=64, block_K=n).signature for n in (16, 32)}
    assert len(found) == 2


def tuned(function: Any, *configs: dict[str, Any], **options: Any) -> Any:
    return tiledsl.autotune(configs=configs, **{"numerics": "same-bits", "cache": False, **options})(function)


def test_only_the_reference_bits_can_win(timer: Any) -> None:
    speed = {(0, 4): 3.0, (0, 8): 2.0, (32, 4): 1.0}
    timer(lambda config: speed[config["chunk"], config["block"]])
    configs = [{"chunk": chunk, "block": block} for chunk, block in speed]
    result = tuned(sums, *configs, ref_prog=row_sums)(16, 128)
    assert result.config == {"chunk": 0, "block": 8}
    assert [trial.status for trial in result.trials] == ["ok", "ok", "other_bits"]
    assert result.trials[2].message.startswith("other bits than chunk=0 block=4: its program adds")
    assert result.bit_class == result.trials[0].bit_class == result.trials[1].bit_class != ""
    assert result.trials[0].output_bits == result.trials[1].output_bits != ""
    assert "other bits than chunk=0" in result.table()
    assert "1 could not win, for their results have other bits" in result.explain()


def test_the_reference_may_be_named(timer: Any) -> None:
    timer(lambda config: 1.0 + config["chunk"])
    configs = [{"chunk": 0}, {"chunk": 32}, {"chunk": 64}]
    result = tuned(sums, *configs, ref_prog=row_sums, reference_config={"chunk": 64})(16, 128)
    assert [trial.status for trial in result.trials] == ["other_bits", "other_bits", "ok"]
    with pytest.raises(tiledsl.TileError, match="no configuration has the values of reference_config, chunk=7"):
        tuned(sums, *configs, reference_config={"chunk": 7})(16, 128)


def test_what_the_program_does_not_say_the_device_says(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the static class were wrong, outputs would tell."""
    from tiledsl.autotuner.verifying import bit_class

    monkeypatch.setattr(bit_class, "program_class", lambda kernel: bit_class.BitClass("one for all"))
    timer(lambda config: 1.0 / (1 + config["chunk"]))
    result = tuned(sums, {"chunk": 0}, {"chunk": 32}, ref_prog=row_sums)(16, 250)
    assert result.config == {"chunk": 0}
    assert result.trials[1].message.startswith("other bits than chunk=0, on the device (0.0303 ms)")


def test_a_reference_that_does_not_work_ends_the_tuning(timer: Any) -> None:
    timer(lambda config: 1.0)
    with pytest.raises(tiledsl.TileError) as caught:
        tuned(product, {"variant": "squared"}, {"variant": "chain"}, ref_prog=times)(16, 16, 16)
    text = str(caught.value)
    assert "the reference configuration, variant=squared, does not work" in text and "mismatch:" in text


def test_it_is_part_of_the_key_and_remembered(timer: Any) -> None:
    timer(lambda config: 1.0 + config["chunk"])
    configs = [{"chunk": 0, "block": 4}, {"chunk": 32, "block": 4}]
    plain = tuned(sums, *configs, numerics=None, cache=True, ref_prog=row_sums)
    same = tuned(sums, *configs, cache=True, ref_prog=row_sums)
    other = tuned(sums, *configs, cache=True, ref_prog=row_sums, reference_config={"chunk": 32})
    assert len({each.key(16, 128).digest for each in (plain, same, other)}) == 3
    first = same(16, 128)
    again = tuned(sums, *configs, cache=True, ref_prog=row_sums)(16, 128)
    assert (again.from_cache, again.bit_class) == ("disk", first.bit_class)
    assert [trial.status for trial in again.trials] == ["ok", "other_bits"]


def test_rows_keep_their_bits(timer: Any) -> None:
    """The same configuration computes the same rows in kernels for 1 and for 48 of them."""
    timer(lambda config: 1.0 / config["block"])
    result = tuned(sums, {"block": 2}, {"block": 4}, numerics="batch-invariant", ref_prog=row_sums)(16, 128)
    assert result.config == {"block": 4}


def test_a_row_that_depends_on_its_number_of_rows_is_found(timer: Any) -> None:
    @tiledsl.jit(out_idx=-1)
    def by_size(M, N, block=4):
        @T.prim_func
        def by_size(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
            with T.Kernel(T.ceildiv(M, block)) as bx:
                part = T.alloc_fragment((block, 32 if M > 20 else N), "float32")
                some = T.alloc_fragment((block,), "float32")
                total = T.alloc_fragment((block,), "float32")
                T.clear(total)
                for k in T.serial(T.ceildiv(N, 32) if M > 20 else 1):
                    T.copy(A[bx * block, k * 32], part)
                    T.reduce_sum(part, some, dim=1)
                    for i in T.Parallel(block):
                        total[i] += some[i]
                T.copy(total, B[bx * block])

        return by_size

    timer(lambda config: 1.0)
    assert tuned(by_size, {"block": 4}, ref_prog=row_sums)(16, 250).config == {"block": 4}
    with pytest.raises(tiledsl.TileError, match="the reference configuration, block=4, has rows with other bits among"):
        tuned(by_size, {"block": 4}, numerics="batch-invariant", ref_prog=row_sums)(16, 250)


@pytest.mark.parametrize(("fault", "how"), [("ends", "ended the process with exit status 3"), ("hangs", "given up")])
def test_a_builder_that_ends_the_process_for_other_rows_is_named(timer: Any, fault: str, how: str) -> None:
    @tiledsl.jit(out_idx=-1)
    def by_size(M, N, block=4):
        if M == 48 and fault == "ends":
            os._exit(3)
        while M == 48:
            time.sleep(1)
        return sums_builder(M, N)

    timer(lambda config: 1.0)
    with pytest.raises(tiledsl.TileError, match="block=4, cannot be built for 48 rows") as found:
        tuned(by_size, {"block": 4}, numerics="batch-invariant", ref_prog=row_sums, timeout=3)(16, 128)
    assert how in str(found.value)


def test_what_counts_rows_must_be_known(timer: Any) -> None:
    @tiledsl.jit(out_idx=-1)
    def doubled(rows, block=4):
        @T.prim_func
        def doubled(A: T.Tensor((rows, 16), "float32"), B: T.Tensor((rows, 16), "float32")):
            with T.Kernel(T.ceildiv(rows, block)) as bx:
                for i, j in T.Parallel(block, 16):
                    B[bx * block + i, j] = A[bx * block + i, j] * 2

        return doubled

    timer(lambda config: 1.0)
    options = {"numerics": "batch-invariant", "ref_prog": lambda A: A * 2}
    with pytest.raises(tiledsl.TileError, match="must know which argument counts rows, and 'M' is none") as caught:
        tuned(doubled, {"block": 4}, **options)(32)
    assert "pass rows=..., one of rows" in str(caught.value)
    assert tuned(doubled, {"block": 4}, rows="rows", **options)(32).config == {"block": 4}


def test_a_file_keeps_one_class(timer: Any, tmp_path: Path) -> None:
    timer(lambda config: 1.0 + config["chunk"])
    configs = [{"chunk": 0}, {"chunk": 32}]
    first = tuned(sums, *configs, ref_prog=row_sums, numerics="batch-invariant")
    report = first.tune_into(tmp_path, [(16, 128), (64, 128)])
    assert not report.failed
    path = path_of(tmp_path, "sums_builder", Target("interpret"))
    entries = read_or_new(path, "sums_builder", "interpret").entries
    assert len({entry.bit_class for entry in entries}) == 1 and entries[0].bit_class
    other = tuned(sums, *configs, ref_prog=row_sums, numerics="batch-invariant", reference_config={"chunk": 32})
    report = other.tune_into(tmp_path, [(32, 128)])
    assert report.failed and "a file has one class" in report.failed[0].message
    served = tuned(sums, *configs, numerics="batch-invariant", tuned=tmp_path, on_miss="error", bucket="M")
    assert served(48, 128).config == {"chunk": 0}


def test_a_file_without_classes_does_not_serve(timer: Any, tmp_path: Path) -> None:
    timer(lambda config: 1.0 + config["chunk"])
    configs = [{"chunk": 0}, {"chunk": 32}]
    tuned(sums, *configs, ref_prog=row_sums, numerics=None).tune_into(tmp_path, [(16, 128)])
    with pytest.raises(tiledsl.TileError, match="tuned without numerics='same-bits'"):
        tuned(sums, *configs, tuned=tmp_path, on_miss="error")(16, 128)
    assert tuned(sums, *configs, numerics=None, tuned=tmp_path, on_miss="error")(16, 128).config == {"chunk": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "exact"}, "it must be 'same-bits' or 'batch-invariant'"),
        ({"numerics": None, "rows": "M"}, "rows says something of numerics"),
        ({"reference_config": [1]}, "reference_config is"),
        ({"rows": 5}, "rows is 5"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=re.escape(message)):
        tuned(sums, {"chunk": 0}, **options)


# Bits, and inputs that show them


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float64])
def test_adversarial_inputs_cancel_and_stay_in_range(dtype: Any) -> None:
    given = [torch.rand(32, 64).mul(2).sub(1).to(dtype), torch.rand(64, 16).to(dtype), torch.arange(5), 3]
    sets = list(bits.adversarial_inputs(given))
    assert len(sets) == 3
    for A, B, index, number in sets:
        assert A.dtype == B.dtype == dtype and index.equal(given[2]) and number == 3
        wide = A.double()
        assert wide.isfinite().all() and wide.abs().max() <= given[0].double().abs().max() * 1.07
        assert B.double().min() >= 0
    a, b = sets[0][0].double(), sets[0][1].double()
    assert ((a @ b).abs() < 0.2 * (a.abs() @ b.abs())).all()
    again = list(bits.adversarial_inputs(given))
    assert all(bits.fingerprint(one[:2]) == bits.fingerprint(two[:2]) for one, two in zip(sets, again))


def test_other_orders_of_a_sum_show() -> None:
    """What the inputs are for: splits, chunks and reversals of a sum of 256 products differ in their bits."""
    given = [torch.rand(8, 256) * 2 - 1, torch.rand(256, 8) * 2 - 1]

    def chained(A: Any, B: Any, order: Any) -> Any:
        total = torch.zeros(8, 8)
        for k in order:
            total += A[:, k : k + 1] * B[k]
        return total

    for A, B in bits.adversarial_inputs(given):
        whole = chained(A, B, range(256))
        halves = chained(A, B, range(128)) + chained(A, B, range(128, 256))
        back = chained(A, B, reversed(range(256)))
        found = {bits.fingerprint([each]) for each in (whole, halves, back)}
        assert len(found) == 3
