"""resolve-views: the same results, and no view of an on-chip buffer left."""

from __future__ import annotations

import numpy as np

import tiledsl.language as T
from tests.passes.ir_cases import after, filecheck
from tests.support.programs import check_pass
from tiledsl.dialects import tile
from tiledsl.passes.resolve_views import ResolveViews
from tiledsl.passes.specs import parse_pipeline

PIPELINE = "canonicalize,lower-tile-ops,vectorize-parallel,resolve-views,promote-buffers"


@T.prim_func
def through_views(X: T.Tensor((6, 8), "float32"), Y: T.Tensor((48,), "float32"), Z: T.Tensor((3, 16), "float32")):
    with T.Kernel(1, threads=32):
        tile = T.alloc_fragment((6, 8), "float32")
        flat = T.reshape(tile, (48,))
        split = T.reshape(flat, (3, 16))
        T.copy(X, tile)
        for i in T.Parallel(48):
            flat[i] = flat[i] * 2 + i
        T.copy(flat, Y)
        for i, j in T.Parallel(3, 8):
            split[i, j] = split[i, j + 8]
        T.copy(tile, X)
        T.copy(split, Z)


def test_reads_and_writes_through_views() -> None:
    func = through_views.build()
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    after = check_pass(parse_pipeline(PIPELINE), func, [x, np.zeros(48, np.float32), np.zeros((3, 16), np.float32)])
    assert not any(isinstance(op, (tile.ViewOp, tile.AllocOp, tile.ReadOp)) for op in after.walk())


def test_views_of_global_memory_stay() -> None:
    @T.prim_func
    def program(X: T.Tensor((6, 8), "float32")):
        with T.Kernel(1):
            flat = T.Tensor((48,), "float32", X.data)
            for i in T.Parallel(48):
                flat[i] = i

    func = program.build()
    after = check_pass(parse_pipeline(PIPELINE), func, [np.zeros((6, 8), np.float32)])
    assert sum(isinstance(op, tile.ViewOp) for op in after.walk()) == 1


def test_a_view_of_a_view_is_one_of_the_buffer() -> None:
    """Each user copies from and to the buffer itself, and the views alone copy nothing."""
    made = after(
        ResolveViews(),
        """
        %t = tile.alloc : buffer<4*float32, shared>
        %f = tile.view %t {kind = "reshape"} : buffer<2*2*float32, shared>
        %s = tile.view %f {kind = "reshape"} : buffer<4*1*float32, shared>
        %x = tile.read %s : tensor<4x1xfloat32>
        tile.write %x, %s
        """,
    )
    filecheck(
        made,
        """
        %t = tile.alloc : buffer<4*float32, shared>
        %f = tile.alloc : buffer<2*2*float32, shared>
        %s = tile.alloc : buffer<4*1*float32, shared>
        %0 = tile.read %t : tensor<4xfloat32>
        %1 = tensor.reshape %0 : tensor<4x1xfloat32>
        tile.write %1, %s
        %x = tile.read %s : tensor<4x1xfloat32>
        tile.write %x, %s
        %2 = tile.read %s : tensor<4x1xfloat32>
        %3 = tensor.reshape %2 : tensor<4xfloat32>
        tile.write %3, %t
        """,
    )
