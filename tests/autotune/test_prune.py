"""The pruner against what Triton's compiler said of the same configurations (recordings/shared_memory*.json)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.autotune import kernels
from tiledsl.autotuner.predicting import prune, work
from tiledsl.autotuner.predicting.work_types import Dot, Loop, Work
from tiledsl.runtime.resources import Resources
from tiledsl.runtime.target import Target

# Compiled without a GPU: gemm of 4096^3 and attention of 4 x 32 x 4096 at chosen configurations, and products drawn at
# random near the limit: ragged sizes, transposed operands, element types, loops with more in them (kernels.varied).
RECORDED = [
    each
    for path in sorted(Path(__file__).with_name("recordings").glob("shared_memory*.json"))
    for each in json.loads(path.read_text())
]
SIZES: dict[str, dict[str, int]] = {
    "varied": {},
    "gemm": {"M": 4096, "N": 4096, "K": 4096},
    "attention": {"batch": 4, "heads": 32, "seq": 4096},
}
H100 = Target("cuda", 90)


def works_of(name: str, config: dict[str, Any]) -> list[Work]:
    root, pass_configs = getattr(kernels, name).program_for({**SIZES[name], **config})
    return work.read(root, pass_configs)


@cache
def estimates() -> list[tuple[int, str | None]]:
    """The least shared memory and the reason to prune of each recorded configuration."""
    found = []
    for each in RECORDED:
        works, target = works_of(each["kernel"], each["config"]), Target.parse(each["target"])
        found.append((prune.shared_bytes(works[0], target)[0], prune.reason(works, target)))
    return found


def test_the_estimate_of_shared_memory_is_a_lower_bound() -> None:
    for each, (least, _) in zip(RECORDED, estimates()):
        assert least <= each["shared_bytes"], each


def test_tiles_that_are_divided_take_what_their_parts_take() -> None:
    sizes = {"block_M": 64, "block_N": 320, "block_K": 64, "num_stages": 3, "threads": 256}
    least, _ = prune.shared_bytes(works_of("gemm", sizes)[0], H100)
    assert least == 3 * (64 + 320) * 64 * 2  # as Triton has it, see benchmarks/results/README.md


def test_the_estimate_is_exact_for_pipelined_16_bit_products_on_hopper() -> None:
    compared = 0
    for recorded, (least, _) in zip(RECORDED, estimates()):
        config = recorded["config"]
        if (
            recorded["target"] == "cuda:90"
            and recorded["kernel"] != "varied"
            and config["num_stages"] > 1
            and config["block_M"] >= 64
            and "dtype" not in config
        ):
            assert least == recorded["shared_bytes"], recorded
            compared += 1
    assert compared > 40


def test_nothing_that_compiles_without_heavy_spills_is_pruned() -> None:
    for each, (_, reason) in zip(RECORDED, estimates()):
        fits = each["shared_bytes"] <= Target.parse(each["target"]).max_shared_bytes
        if fits and each["spills"] <= prune.HEAVY_SPILLS:
            assert reason is None, (each, reason)


def test_what_does_not_fit_is_pruned() -> None:
    """All of the chosen configurations, and of the random ones most: some loops need more than can be told for sure."""
    caught: dict[bool, list[bool]] = {False: [], True: []}
    for each, (_, reason) in zip(RECORDED, estimates()):
        if each["shared_bytes"] > Target.parse(each["target"]).max_shared_bytes:
            caught[each["kernel"] == "varied"].append(reason is not None)
    assert len(caught[False]) >= 15 and all(caught[False])
    assert len(caught[True]) >= 10 and sum(caught[True]) >= 0.6 * len(caught[True])


def test_what_has_no_loop_needs_no_shared_memory() -> None:
    (read,) = works_of("gemm", {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256})
    assert prune.shared_bytes(replace(read, loops=[]), H100) == (0, "")
    twice = [read.loops[0], replace(read.loops[0], stages=1)]
    assert prune.shared_bytes(replace(read, loops=twice), H100) == (
        3 * 2 * 128 * 64 * 2, "A_s 49152 + B_s 49152; 3 stages"
    )  # fmt: skip


def gemm(**changes: Any) -> Any:
    config = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256, **changes}
    return kernels.gemm(4096, 4096, 4096, **config)


def test_reasons_say_what_is_needed_and_what_there_is() -> None:
    assert prune.prune_reason(gemm(), H100) is None
    reason = prune.prune_reason(gemm(block_N=256, num_stages=5), H100)
    assert reason == (
        "needs at least 245760 bytes of shared memory a block (A_s 81920 + B_s 163840; 5 stages);"
        " cuda:90 has 232448"
    )  # fmt: skip
    assert prune.prune_reason(gemm(block_N=256, num_stages=5), Target("cuda", 100)) == reason.replace(":90", ":100")
    reason = prune.prune_reason(gemm(block_M=256, block_N=256), H100)
    assert reason is not None and "256 x 256 accumulator needs 256 registers of each of 256 threads" in reason
    assert prune.prune_reason(gemm(block_M=256, block_N=256, threads=512), H100) is None


def test_maxnreg_must_leave_room_for_the_sums() -> None:
    config = {
        **dict.fromkeys("MNK", 4096),
        "block_M": 128,
        "block_N": 256,
        "block_K": 64,
        "num_stages": 3,
        "threads": 256,
    }
    reasons = [
        prune.reason(work.read(*kernels.gemm.program_for({**config, "maxnreg": each})), H100) for each in (128, 168)
    ]
    assert reasons[0] is not None and reasons[0].endswith("128 registers of each of 256 threads, and maxnreg=128")
    assert reasons[1] is None


def test_loops_that_are_not_pipelined_need_one_copy() -> None:
    one_iteration = kernels.gemm(4096, 4096, 64, 128, 128, 64, 9, 256)
    assert prune.prune_reason(one_iteration, H100) is None and one_iteration.resources.shared_bytes == 32768
    assert prune.prune_reason(gemm(num_stages=0), H100) is None


def test_loads_of_single_elements_are_not_pipelined() -> None:
    """With odd strides Triton cannot copy four bytes at once, so it does not copy asynchronously."""
    config = {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 5, "threads": 256}
    assert prune.prune_reason(kernels.gemm(4096, 4096, 4096, **config), H100) is not None
    assert prune.prune_reason(kernels.gemm(4095, 4095, 4095, **config), H100) is None


def test_threads_tiles_and_types() -> None:
    (base,) = works_of("gemm", {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128})
    many = replace(base, options={"num_warps": 32})
    assert prune.reason([many], H100) is None
    assert prune.reason([many], Target("hip", "gfx942")) == "needs 2048 threads a block; hip:gfx942 has at most 1024"
    assert prune.reason([replace(base, options={"num_ctas": 2})], H100) is None
    clusters = prune.reason([replace(base, options={"num_ctas": 2})], Target("cuda", 80))
    assert clusters == "needs clusters of 2 blocks, which cuda:80 does not have"
    assert prune.reason([replace(base, options={"num_ctas": 2})], Target("interpret")) is None
    large = prune.reason([replace(base, largest_tile=1 << 21, largest_name="x")], H100)
    assert large == "x has 2097152 elements (as a power of two); Triton allows 1048576"
    old = prune.reason([replace(base, dtypes={"bfloat16"})], Target("cuda", 75))
    assert old == "uses bfloat16, which cuda:75 does not have"


def test_the_largest_tile_is_found_with_its_padding() -> None:
    @T.prim_func
    def copy(A: T.Tensor((600, 512), "float16"), B: T.Tensor((600, 512), "float16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((600, 512), "float16")
            T.copy(A, x)
            T.copy(x, B)

    (found,) = work.work_of(tiledsl.compile(copy, target="interpret"))
    assert (found.largest_tile, found.largest_name) == (1024 * 512, "x")


def test_compiled_configurations_are_pruned_by_exact_numbers() -> None:
    fine = Resources(65536, 96, 0, 0, 8, (2, "registers"))
    assert prune.prune_compiled(fine, H100) is None
    reason = prune.prune_compiled(replace(fine, shared_bytes=245760), H100)
    assert reason == "needs 245760 bytes of shared memory a block; cuda:90 has 232448"
    reason = prune.prune_compiled(replace(fine, num_warps=32, registers=80), H100)
    assert reason is not None and "80 registers for each of 1024 threads, 81920 in all" in reason
    spilling = {"shared_bytes": 65536, "registers": 255, "spills": 1024, "num_warps": 8}
    assert "spills 1024 bytes" in (prune.prune_compiled(spilling, H100) or "")
    assert prune.prune_compiled(spilling, H100, max_spills=None) is None
    unknown = Resources(65536, None, None, None, 8, (2, "warps"))
    assert prune.prune_compiled(unknown, H100) is None


# At the limits, on works written by hand


SIXTEEN = Dot(128, 128, 64, "float16", 32.0, True, useful=1.0)


def made(dot: Dot = SIXTEEN, loops: list[Loop] | None = None, threads: int = 128, **changes: Any) -> Work:
    return Work("kernel", (64,), threads, {}, [dot], loops=loops or [], dtypes={dot.dtype}, **changes)


def staged(size: int, stages: int = 2, dot: Dot = SIXTEEN, **changes: Any) -> Loop:
    return Loop(stages, 8.0, {"A": (size // 2, dot), "B": (size - size // 2, dot)}, **changes)


def test_every_limit_is_the_last_that_fits() -> None:
    for target in (H100, Target("cuda", 80), Target("cuda", 100), Target("hip", "gfx942")):
        limit = target.max_shared_bytes
        resources = {"shared_bytes": limit, "registers": None, "spills": None, "num_warps": 4}
        assert prune.prune_compiled(resources, target) is None
        assert prune.prune_compiled({**resources, "shared_bytes": limit + 1}, target) is not None
    for tile, fits in ((1 << 20, True), ((1 << 20) + 1, False)):
        assert (prune.reason([made(largest_tile=tile, largest_name="x")], H100) is None) is fits
    for threads, fits in ((1024, True), (2048, False)):
        assert (prune.reason([made(threads=threads)], H100) is None) is fits
    for spills, fits in ((512, True), (513, False)):
        assert (prune.prune_compiled({"spills": spills}, H100) is None) is fits
    for arch, has_clusters in ((86, False), (89, False), (90, True), (100, True), (110, True), (120, False)):
        work = replace(made(), dots=[], options={"num_ctas": 2})
        assert (prune.reason([work], Target("cuda", arch)) is None) is has_clusters


def test_registers_are_given_in_steps_of_eight() -> None:
    """64 K registers of 32 warps are 64 for each thread; 57 to 64 take as many."""
    for registers, fits in ((57, True), (64, True), (65, False), (72, False)):
        assert (prune.prune_compiled({"registers": registers, "num_warps": 32}, H100) is None) is fits
    assert prune.prune_compiled({"registers": 512, "num_warps": 32}, Target("hip", "gfx942")) is None
    assert prune.prune_compiled({"registers": 255, "num_warps": None}, H100) is None


def test_the_sums_of_a_product_have_the_registers_that_there_are() -> None:
    def reason(m: int, n: int, threads: int, target: Target = H100, times: float = 2.0, **options: Any) -> str | None:
        return prune.reason([replace(made(replace(SIXTEEN, m=m, n=n, times=times), threads=threads), options=options)], target)  # fmt: skip # noqa: E501

    for target in (H100, Target("cuda", 89), Target("cuda", 99), Target("cuda", 120)):
        assert reason(128, 128, 128, target) is None  # 128 of each thread
        found = reason(256, 128, 128, target)  # 256 of 255
        assert isinstance(found, prune.SoftPruneReason) and found.endswith("255")
        assert reason(256, 128, 256, target) is None
        assert reason(256, 128, 128, target, times=1.0) is None  # sums that no loop carries need not be there at once
    assert reason(512, 128, 1024) is None and reason(512, 256, 1024) is not None  # 64 each of 1024 threads
    for target in (Target("cuda", 100), Target("cuda", 119), Target("hip", "gfx942"), Target("interpret", None)):
        assert reason(256, 256, 128, target) is None  # elsewhere than in a thread's registers
    assert reason(128, 128, 128, maxnreg=128) == (
        "the product's 128 x 128 accumulator needs 128 registers of each of 128 threads, and maxnreg=128"
    )
    assert reason(128, 128, 128, maxnreg=129) is None
    assert reason(256, 128, 128, num_ctas=2) is None  # 256 threads
    assert prune.accumulator_registers(replace(SIXTEEN, m=1, n=129), 128) == 2


@pytest.mark.parametrize(
    ("change", "target", "expected"),
    [
        ({}, "cuda:90", True), ({}, "cuda:89", False), ({}, "cuda:100", True), ({}, "cuda:110", True),
        ({}, "cuda:120", False),
        ({}, "hip:gfx942", False), ({}, "interpret", False),
        ({"m": 64}, "cuda:90", True), ({"m": 32}, "cuda:90", False), ({"n": 8}, "cuda:90", True),
        ({"n": 4}, "cuda:90", False),
        ({"precision": "ieee"}, "cuda:90", False), ({"dtype": "what"}, "cuda:90", False),
        ({"k_major": False}, "cuda:90", True), ({"dtype": "bfloat16", "k_major": False}, "cuda:90", True),
        ({"dtype": "float32"}, "cuda:90", True), ({"dtype": "float32", "k_major": False}, "cuda:90", False),
        ({"dtype": "float64"}, "cuda:90", False), ({"dtype": "int8"}, "cuda:90", True),
        ({"dtype": "int8", "k_major": False}, "cuda:90", False), ({"dtype": "int8"}, "cuda:100", False),
        ({"dtype": "float8_e5m2"}, "cuda:100", True), ({"dtype": "float8_e5m2"}, "cuda:90", True),
    ],
)  # fmt: skip
def test_what_is_computed_asynchronously(change: dict[str, Any], target: str, expected: bool) -> None:
    dot = replace(SIXTEEN, **change)
    assert prune.is_asynchronous(dot, made(dot), Target.parse(target)) is expected
    assert not prune.is_asynchronous(dot, made(dot, threads=96), Target.parse(target))  # three warps


def test_how_many_copies_a_loop_keeps() -> None:
    def least(*loops: Loop, target: Target = H100, likely: bool = False, **options: Any) -> int:
        return prune.shared_bytes(replace(made(loops=list(loops)), options=options), target, likely)[0]

    plain = replace(SIXTEEN, precision="ieee")
    for stages in (2, 3, 4):
        assert least(staged(1000, stages)) == 1000 * stages
        assert least(staged(1000, stages, plain)) == 1000 * (stages - 1)
    assert least(staged(1000, 1)) == 1000 and least(staged(1000, 0)) == 1000
    assert least(staged(1000, 1, plain)) == 0  # read into registers at once
    assert least(staged(1000, 1, plain), likely=True) == 1000
    assert least(staged(1000, 1, plain), staged(600, 3), staged(1200, 1)) == 1800  # the loop that needs most
    assert least(staged(1000, 3), num_ctas=2) == 0 and least(staged(1000, 3), num_ctas=1) == 3000
    assert least(staged(1000, 3), target=Target("interpret", None)) == 0
    work = made(loops=[staged(1000, 2), staged(500, 4), staged(100, 2)])
    assert prune.shared_bytes(work, H100) == (2000, "A 1000 + B 1000; 2 stages")  # the first of two
    # A left operand that lies transposed is not kept, but where the product takes it from shared memory.
    assert least(staged(1000, 3, plain, turned={"A"})) == 1000
    assert least(staged(1000, 3, plain, turned={"A"}), likely=True) == 2000
    assert least(staged(1000, 3, turned={"A"})) == 3000
    # What was loaded before the loop lies beside it.
    assert least(staged(1000, 3, held={"Q": (50, SIXTEEN)})) == 3050
    assert least(staged(1000, 3, held={"Q": (50, plain)})) == 3000
    assert least(staged(1000, 3, held={"Q": (50, plain)}), likely=True) == 3050
    assert least(staged(1000, 2), staged(800, 2, held={"Q": (500, SIXTEEN)}), staged(1000, 2)) == 2100
    # Not pipelined, the tiles of two products need not be there at once.
    other = replace(SIXTEEN, number=1)
    two = Loop(1, 8.0, {"A": (300, SIXTEEN), "B": (300, SIXTEEN), "C": (500, other)})
    assert least(two) == 600 and least(replace(two, stages=2)) == 2200


def test_shared_memory_is_full_at_its_limit() -> None:
    limit = H100.max_shared_bytes
    assert limit % 2 == 0
    assert prune.reason([made(loops=[staged(limit // 2, 2)])], H100) is None
    assert prune.reason([made(loops=[staged(limit // 2 + 1, 2)])], H100) == (
        f"needs at least {limit + 2} bytes of shared memory a block (A {limit // 4 * 2} +"
        f" B {limit + 2 - limit // 4 * 2}; 2 stages); cuda:90 has {limit}"
    )
    assert prune.reason([made(), made(loops=[staged(limit, 2)])], H100) is not None  # any launch of the program


def test_what_needs_as_much() -> None:
    one = made(loops=[staged(1000, 3)])
    deeper, shallower = made(loops=[staged(1000, 4)]), made(loops=[staged(1000, 2)])
    assert prune.needs_as_much([one], [one], H100) and prune.needs_as_much([deeper], [one], H100)
    assert not prune.needs_as_much([shallower], [one], H100)
    for other in (
        [made(loops=[staged(999, 3)])], [made(loops=[staged(1000, 3, held={"Q": (5, SIXTEEN)})])], [one, one], [],
        [made(loops=[])], [made(loops=[staged(1000, 3)], threads=256)],
        [made(replace(SIXTEEN, n=64), loops=[staged(1000, 3)])],
    ):  # fmt: skip
        assert not prune.needs_as_much([one], other, H100) and not prune.needs_as_much(other, [one], H100)
    assert not prune.needs_as_much([one, shallower], [one, one], H100)
