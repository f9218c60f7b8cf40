"""What threads read of a tile they have before the producer may load another one there: a copy goes another way to
shared memory, and overtakes loads that no fence waits for. On an H200 attention whose queries were read to registers
gave rows of the next block's queries, where a block had so few turns that the producer already waited for the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from tests.codegen.test_gluon import attention
from tests.codegen.test_gluon_gradients import errors, gradients
from tests.passes.gluon import test_prepared
from tests.support import gluon_machine
from tests.support.gluon_kernels import part_of
from tests.support.turn_programs import words_expected
from tiledsl.certificate.algebra import ExecutorError

BEFORE_ARRIVAL = re.compile(r"fence_async_shared\(\)\n( *mbarrier\.arrive\((\w*empty))")


def many_blocks() -> str:
    return attention({"select-emitter.persistent": True}, batch=1, queries=5120, keys=64, kv_heads=4).source


def run_attention(source: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 5120, 128).half(), torch.randn(1, 4, 64, 128).half(), torch.randn(1, 4, 64, 128).half()
    out, lse = torch.empty_like(q), torch.empty(1, 4, 5120)
    gluon_machine.run_gluon(source, "attention_forward", q, k, v, out, lse)
    expected = torch.softmax(q.float() @ k.float().mT * 128**-0.5, -1) @ v.float()
    assert torch.allclose(out.float(), expected, atol=2e-3)


def run_words(source: str) -> None:
    given, out = test_prepared.inputs(), torch.empty(64, 640, dtype=torch.float16)
    gluon_machine.run_gluon(source, "from_words", *given, out)
    assert torch.equal(out, words_expected(*given))


READ: dict[str, tuple[Callable[[], str], Callable[[str], None], str]] = {
    "queries in registers": (many_blocks, run_attention, "q_empty"),
    "words in registers": (lambda: test_prepared.compiled().source, run_words, "words_empty"),
}


@pytest.mark.parametrize("name", READ)
def test_places_that_threads_have_read_are_released_behind_a_fence(name: str) -> None:
    make, run, ring = READ[name]
    source = make()
    assert [each for _, each in BEFORE_ARRIVAL.findall(part_of(source, "consumer"))] == [ring]
    run(source)
    with pytest.raises(ExecutorError, match="overwrites what was read in shared memory, without a fence"):
        run(BEFORE_ARRIVAL.sub(r"pass\n\1", source))


@pytest.mark.parametrize("name", READ)
def test_a_fence_behind_the_arrival_is_too_late(name: str) -> None:
    make, run, _ = READ[name]
    late = re.sub(
        r"( *)fence_async_shared\(\)\n(?= *mbarrier\.arrive\(\w*empty)(.*\n)", r"\2\1fence_async_shared()\n", make()
    )
    with pytest.raises(ExecutorError, match="was read in shared memory, without a fence"):
        run(late)


def test_rows_beside_tiles_are_behind_the_fence_of_what_is_stored_then() -> None:
    """The fence before dS goes to its product is behind the loads of LSE and D: the arrivals need none of their own."""
    source = gradients().source
    turn = source[source.index("for turn_1 in range(") :]
    loads = [turn.index(f"{row} = {row}_ring") for row in ("lse", "d")]
    assert max(loads) < turn.index("fence_async_shared()") < turn.index("mbarrier.arrive(empty")
    assert not BEFORE_ARRIVAL.search(source)
    with pytest.raises(ExecutorError, match="without a fence"):
        errors(source.replace("fence_async_shared()", "pass"), 256, 256, 128, False)
