"""The garbage collector is held off while a program is lowered, and is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.runtime.gc_pause import collection_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def test_pauses_nest() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_that_the_user_switched_off_stays_off() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_lowering_pauses_and_an_error_in_it_resumes() -> None:
    seen = []
    limit = 64

    def spy(size: int) -> int:
        seen.append(gc.isenabled())
        if size > limit:
            raise ValueError(size)
        return size

    @T.prim_func
    def copy(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128) as bx:
            tile = T.alloc_shared((spy(64),), "float32")
            T.copy(A[bx * 64], tile)
            T.copy(tile, B[bx * 64])

    tiledsl.compile(copy, target="cuda:90")
    assert seen == [False]
    assert gc.isenabled()

    limit = 63
    with pytest.raises(tiledsl.TileError):
        tiledsl.compile(copy, target="cuda:90")
    assert gc.isenabled()
