"""`tiledsl lower --emit schedule`."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import tiledsl
from benchmarks.programs.gemm import matmul
from tests.support.example_modules import load_example
from tests.support.latent_attention import decode
from tiledsl.commands.lower import Request, lower
from tiledsl.commands.schedule import schedule_of, why_triton
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HOPPER = Target("cuda", 90)
ATTENTION = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 256, "keys": 256, "dim": 128}


def test_attention() -> None:
    text = lower(Request(EXAMPLES / "attention.py", "", ATTENTION, HOPPER, emit="schedule"))
    assert text == textwrap.dedent("""\
        attention_forward_kernel for cuda:90: Gluon
        roles   a producer of 1 warp, which loads; consumers, 2 times 4 warps with rows of their own
        rings   q      2 x 64x128 float16, one for each consumer   32 KiB
                k      2 x 128x128 float16                         64 KiB
                v      2 x 128x128 float16                         64 KiB
                acc_6  2 x 64x128 float16, one for each consumer   32 KiB
                                                                  192 KiB

        loop at attention.py:131: 2 deep, at least one turn
          turn  what                                  line    copies  tensor cores  arithmetic  special
          +0    load k 128x128, TMA, by the producer  100        512
          +0    product scores 64x128x128             101                      980
          +1    rescale                               48                                   128
          +1    load v 128x128, TMA, by the producer  111        512
          +1    product acc_4 64x128x128              112                      980
          +0    15 operations                         38-110                               648     1032
                a turn, in cycles                               1024          1959         776     1032
          bound by tensor cores: a turn of a block takes at least 1959 cycles of a multiprocessor""")


def test_an_edited_schedule(tmp_path: Path) -> None:
    """IR of the end of the pipeline is read again, with what was changed in it."""
    file = tmp_path / "attention.mlir"
    text = lower(Request(EXAMPLES / "attention.py", "", {**ATTENTION, "dim": 64}, HOPPER, emit="triton"))
    assert text.count("{num_stages = 2}") == 1
    file.write_text(text.replace("{num_stages = 2}", "{num_stages = 3}"))
    shown = lower(Request(file, "", {}, HOPPER, emit="schedule", resume_after="schedule-loops"))
    assert "k      3 x 128x64 float16" in shown and ": 3 deep, at least one turn" in shown


@pytest.mark.parametrize("consumers", ["one", pytest.param("auto", marks=pytest.mark.slow)])
def test_rings_are_what_the_kernel_takes_of_shared_memory(consumers: str) -> None:
    """In order: a result takes the place of an operand, and what is computed for a product has one, too."""
    configs = {"select-emitter.consumers": consumers}
    kernel = tiledsl.compile(decode(batch=2, keys=4096, dim=512), target="cuda:90", pass_configs=configs)
    text = schedule_of(kernel, HOPPER)
    assert ("consumers of 8 warps" in text) == ("weights  1 x 64x64 float16, computed" in text) == (consumers == "one")
    assert ": 2 deep, at least one turn, 2 turns at a time\n" in text
    total = float(text[: text.index("\n\nloop")].split()[-2])
    barriers = kernel.resources.shared_bytes - 1024 * total
    assert 0 < barriers < 1024


def test_what_triton_orders() -> None:
    file = EXAMPLES / "attention_backward.py"
    text = lower(Request(file, "key_value_gradients", {**ATTENTION, "threads": 128}, HOPPER, emit="schedule"))
    lines = text.splitlines()
    assert lines[0].endswith("for cuda:90: written in Triton, which orders the loops")
    assert "need 224 registers a thread of 210" in lines[1] and lines[2] == "roles   4 warps, which all do the same"
    assert sum(line.startswith("  +0    product") for line in lines) == 4
    assert "bound by tensor cores" in lines[-1] and "rings" not in text


def test_why_triton_orders_loops_of_which_no_remark_says_so() -> None:
    product = matmul.function
    sizes = {"M": 256, "N": 256, "K": 256, "block_M": 128, "block_N": 128, "block_K": 64}
    kernel = tiledsl.jit(product, target="cuda:90").compile(**sizes)
    (why,) = why_triton(kernel)
    assert (
        why == 'matmul_kernel: loops of one product are scheduled for Gluon only with select-emitter.backend = "gluon"'
    )
    assert schedule_of(kernel, HOPPER).splitlines()[1] == f"  {why}"
    passes = {"select-emitter.backend": "gluon"}
    assert not why_triton(tiledsl.jit(product, target="cuda:90", pass_configs=passes).compile(**sizes))
    assert not why_triton(tiledsl.jit(product, target="cuda:80").compile(**sizes))
    backward = load_example("attention_backward").key_value_gradients.function
    of_remarks = tiledsl.jit(backward, target="cuda:90").compile(**ATTENTION, threads=128)
    assert any("not in Gluon: " in each for each in of_remarks.remarks) and not why_triton(of_remarks)


def test_a_schedule_that_breaks_a_rule_has_no_table(tmp_path: Path) -> None:
    file = tmp_path / "attention.mlir"
    text = lower(Request(EXAMPLES / "attention.py", "", {**ATTENTION, "dim": 64}, HOPPER, emit="triton"))
    file.write_text(text.replace('ring = "v"', 'ring = "item"'))
    with pytest.raises(TileError, match="ring 'item' holds"):
        lower(Request(file, "", {}, HOPPER, emit="schedule", resume_after="schedule-loops"))


def test_groups_that_take_turns() -> None:
    configs = {"select-emitter.backend": "gluon", "select-emitter.consumers": "alternate"}
    text = schedule_of(tiledsl.compile(decode(keys=256), target=HOPPER, pass_configs=configs), HOPPER)
    assert "; consumers, 2 times 4 warps, which take turns in turn" in text
    assert "weights    1 x 64x64 float16, told     8 KiB" in text and "more       1 x 64 float32, told     0.25" in text
    assert ": 2 deep, at least one turn, 2 turns at a time" in text
