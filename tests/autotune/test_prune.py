"""The pruner against what Triton's compiler said of the same configurations (recordings/shared_memory*.json)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import tiledsl
import tiledsl.language as T
from tests.autotune import kernels
from tiledsl.autotuner.predicting import prune, work
from tiledsl.autotuner.predicting.work_types import Work
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


def test_the_estimate_is_exact_for_pipelined_16_bit_products_on_hopper() -> None:
    compared = 0
    for each, (least, _) in zip(RECORDED, estimates()):
        config = each["config"]
        if (
            each["target"] == "cuda:90"
            and each["kernel"] != "varied"
            and config["num_stages"] > 1
            and config["block_M"] >= 64
            and "dtype" not in config
        ):
            assert least == each["shared_bytes"], each
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
