"""Programs whose warps have roles and wait for each other by barriers: what they compute, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

N = 64  # columns of X, in tiles of 16


def lowered(program: Any) -> str:
    """The IR once the roles are merged."""
    from tiledsl.ir.pass_manager import PassManager, Program
    from tiledsl.ir.printer import print_op
    from tiledsl.passes import default_pipeline

    made = Program(program.func)
    PassManager(default_pipeline(), stop_after="merge-roles").run(made)
    return print_op(made.root)


def refused(program: Any) -> TileError:
    with pytest.raises(TileError) as caught:
        tiledsl.compile(program, target="interpret")
    return caught.value


def ring(
    *, depth: int = 2, tiles: Any = 4, empty: Any = None, full: Any = None, arrivals: int = 128, released: bool = True
) -> Any:
    """Y is the sum of X's tiles of 16 columns, which go through a ring; `empty` and `full` are the parities."""
    empty = empty or (lambda k: (k // depth + 1) % 2)
    full = full or (lambda k: k // depth % 2)

    @T.prim_func
    def main(X: T.Tensor((16, N), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((depth, 16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            ready = T.alloc_barrier([arrivals] * depth)
            free = T.alloc_barrier([128] * depth)
            tx = T.get_thread_binding()
            if tx >= 128:
                T.set_max_nreg(40, 0)
                for k in T.serial(tiles):
                    T.mbarrier_wait_parity(free[k % depth], empty(k))
                    T.tma_copy(X[0:16, k * 16 : k * 16 + 16], s[k % depth, :, :], barrier=ready[k % depth])
                    T.mbarrier_arrive(ready[k % depth])
            else:
                T.clear(total)
                for k in T.serial(tiles):
                    T.mbarrier_wait_parity(ready[k % depth], full(k))
                    for i, j in T.Parallel(16, 16):
                        total[i, j] += s[k % depth, i, j]
                    if released:
                        T.mbarrier_arrive(free[k % depth])
                T.copy(total, Y)

    return main


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("tiles", [0, 1, 4])
def test_a_ring_of_tiles(run: Any, depth: int, tiles: int) -> None:
    x = torch.randn(16, N)
    parts = x.reshape(16, 4, 16)[:, :tiles].sum(1)
    torch.testing.assert_close(run(ring(depth=depth, tiles=tiles), x, torch.empty(16, 16)), parts)


def test_a_ring_becomes_one_tile_in_a_pipelined_loop() -> None:
    text = lowered(ring(depth=3))
    assert "num_stages = 3" in text
    assert "buffer<16*16*float32, shared>" in text
    assert "buffer<3*16*16*float32, shared>" not in text
    assert "thread." not in text
    assert "scf.if" not in text
    assert "threads = 256" not in text  # those of the role that computes are left, 128


def test_roles_inside_of_a_common_loop(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16, N), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            ready, free = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                T.clear(total)
            for k in range(4):
                with T.ws(0):  # first in the text, and second in time
                    T.barrier_wait(ready, k % 2)
                    for i, j in T.Parallel(16, 16):
                        total[i, j] += s[i, j]
                    T.barrier_arrive(free)
                with T.ws(1):
                    T.barrier_wait(free, (k + 1) % 2)
                    T.tma_copy(X[0:16, k * 16 : k * 16 + 16], s, barrier=ready)
                    T.barrier_arrive(ready)
            with T.ws(0):
                T.copy(total, Y)

    x = torch.randn(16, N)
    torch.testing.assert_close(run(main, x, torch.empty(16, 16)), x.reshape(16, 4, 16).sum(1))


def test_two_roles_that_hand_tiles_to_each_other(run: Any) -> None:
    @T.prim_func
    def main(n: T.int32, X: T.Tensor((16,), "int32"), Y: T.Tensor((2, 16), "int32")):
        with T.Kernel(1, threads=256):
            ping, pong = T.alloc_shared((16,), "int32"), T.alloc_shared((16,), "int32")
            here = T.alloc_fragment((16,), "int32")
            there, back = T.alloc_barrier(128), T.alloc_barrier(128)
            tx = T.get_thread_binding()
            if tx < 128:
                T.copy(X, here)
                for k in T.serial(n):
                    for i in T.Parallel(16):
                        ping[i] = here[i] + k
                    T.barrier_arrive(there)
                    T.barrier_wait(back, k % 2)
                    for i in T.Parallel(16):
                        here[i] = pong[i]
                T.copy(here, Y[0, :])
            else:
                T.fill(here, 5)
                for k in T.serial(n):
                    T.barrier_wait(there, k % 2)
                    for i in T.Parallel(16):
                        here[i] += ping[i]
                    for i in T.Parallel(16):
                        pong[i] = 2 * ping[i]
                    T.barrier_arrive(back)
                T.copy(here, Y[1, :])

    x = torch.arange(16, dtype=torch.int32)
    a, b = x.clone(), torch.full((16,), 5, dtype=torch.int32)
    for k in range(3):
        b, a = b + a + k, 2 * (a + k)
    assert run(main, 3, x, torch.empty(2, 16, dtype=torch.int32)).tolist() == [a.tolist(), b.tolist()]


def test_stages_and_phases_in_variables(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16, N), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((3, 16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            ready, free = T.alloc_barrier([128] * 3), T.alloc_barrier([128] * 3)
            stage, phase = T.alloc_var("int32", 0), T.alloc_var("int32", 0)
            tx = T.get_thread_binding()
            if tx >= 128:
                for k in T.serial(4):
                    T.barrier_wait(free[stage], phase ^ 1)
                    T.tma_copy(X[0:16, k * 16 : k * 16 + 16], s[stage, :, :], barrier=ready[stage])
                    T.barrier_arrive(ready[stage])
                    stage += 1
                    if stage == 3:
                        stage = 0
                        phase = phase ^ 1
            else:
                T.clear(total)
                for _ in T.serial(4):
                    T.barrier_wait(ready[stage], phase)
                    for i, j in T.Parallel(16, 16):
                        total[i, j] += s[stage, i, j]
                    T.barrier_arrive(free[stage])
                    stage += 1
                    if stage == 3:
                        stage = 0
                        phase = phase ^ 1
                T.copy(total, Y)

    x = torch.randn(16, N)
    torch.testing.assert_close(run(main, x, torch.empty(16, 16)), x.reshape(16, 4, 16).sum(1))


def test_a_persistent_block_goes_on_in_its_ring(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((4, 3, 16), "float32"), Y: T.Tensor((4, 16), "float32")):
        with T.Kernel(2, threads=256) as b:
            s = T.alloc_shared((2, 16), "float32")
            total = T.alloc_fragment((16,), "float32")
            ready, free = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            with T.ws(1):
                for w in T.serial(2):
                    for k in T.serial(3):
                        T.barrier_wait(free[(w * 3 + k) % 2], (w * 3 + k) // 2 % 2 ^ 1)
                        T.tma_copy(X[w * 2 + b, k, :], s[(w * 3 + k) % 2, :], barrier=ready[(w * 3 + k) % 2])
                        T.barrier_arrive(ready[(w * 3 + k) % 2])
            with T.ws(0):
                for w in T.serial(2):
                    T.clear(total)
                    for k in T.serial(3):
                        T.barrier_wait(ready[(w * 3 + k) % 2], (w * 3 + k) // 2 % 2)
                        for i in T.Parallel(16):
                            total[i] += s[(w * 3 + k) % 2, i]
                        T.barrier_arrive(free[(w * 3 + k) % 2])
                    T.copy(total, Y[w * 2 + b, :])

    x = torch.randn(4, 3, 16)
    torch.testing.assert_close(run(main, x, torch.empty(4, 16)), x.sum(1))


def test_threads_of_a_role_copy_their_elements(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((4, 16), "float32"), rows: T.Tensor((4,), "int32"), Y: T.Tensor((4, 16), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((4, 16), "float32")
            ready = T.alloc_barrier(32)
            row = T.alloc_var("int32")
            tx = T.get_thread_binding()
            if tx >= 32:
                row = rows[(tx - 32) // 8]
                if row >= 0:
                    T.ptx_cp_async(
                        T.access_ptr(s[(tx - 32) // 8, (tx - 32) % 8 * 2], "w", 2),
                        T.access_ptr(X[row, (tx - 32) % 8 * 2], "r", 2),
                        2,
                    )
                T.cp_async_barrier_noinc(ready)
            else:
                T.barrier_wait(ready, 0)
                T.copy(s, Y)

    x = torch.randn(4, 16)
    rows = torch.tensor([3, 1, 1, 0], dtype=torch.int32)
    torch.testing.assert_close(run(main, x, rows, torch.empty(4, 16)), x[rows.long()])


def test_one_thread_of_a_role_arrives(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=160):
            s = T.alloc_shared((16,), "float32")
            ready = T.alloc_barrier(1)
            tx = T.get_thread_binding()
            if tx >= 128:
                if tx == 128:
                    T.tma_copy(X, s, barrier=ready)
                    T.mbarrier_arrive_expect_tx(ready, 64)
            else:
                T.barrier_wait(ready, 0)
                T.copy(s, Y)

    x = torch.randn(16)
    torch.testing.assert_close(run(main, x, torch.empty(16)), x)


def test_a_block_without_roles_waits_for_its_own_copies(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16, N), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            ready = T.alloc_barrier(128)
            T.clear(total)
            for k in T.serial(4):
                T.tma_copy(X[0:16, k * 16 : k * 16 + 16], s, barrier=ready)
                T.barrier_arrive(ready)
                T.barrier_wait(ready, k % 2)
                for i, j in T.Parallel(16, 16):
                    total[i, j] += s[i, j]
            T.copy(total, Y)

    x = torch.randn(16, N)
    torch.testing.assert_close(run(main, x, torch.empty(16, 16)), x.reshape(16, 4, 16).sum(1))


def copies_by_threads(*, holes: bool = False) -> Any:
    """32 threads copy rows of X that are named by `rows`, of 8 elements in each of two turns, into a tile."""

    @T.prim_func
    def main(X: T.Tensor((64, 32), "float32"), rows: T.Tensor((16,), "int32"), Y: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "float32")
            ready = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            if tx >= 32:
                for r in T.serial(2):
                    row = rows[r * 8 + (tx - 32) // 4]
                    if not holes or (tx - 32) % 4 != 0:
                        T.ptx_cp_async(
                            T.access_ptr(s[r * 8 + (tx - 32) // 4, (tx - 32) % 4 * 8], "w", 8),
                            T.access_ptr(X[row, (tx - 32) % 4 * 8], "r", 8),
                            8,
                        )
                T.cp_async_barrier_noinc(ready)
            else:
                T.fill(Y[0:16, 0:8], 0)
                T.barrier_wait(ready, 0)
                if holes:
                    T.copy(s[:, 8:32], Y[:, 8:32])
                else:
                    T.copy(s, Y)

    return main


@pytest.mark.parametrize("holes", [False, True])
def test_shares_of_threads_fill_a_tile(run: Any, holes: bool) -> None:
    x, rows = torch.randn(64, 32), torch.randint(0, 64, (16,), dtype=torch.int32)
    expected = x[rows.long()]
    if holes:
        expected[:, :8] = 0
    torch.testing.assert_close(run(copies_by_threads(holes=holes), x, rows, torch.empty(16, 32)), expected)


def test_shares_of_threads_become_one_loop_over_the_tile() -> None:
    text = lowered(copies_by_threads())
    assert "tile.parallel {extents = (16, 32)}" in text
    assert "lockstep" not in text
    assert "scf.for" not in text


def divided(width: int, *, peeled: bool) -> Any:
    """Rows of X in chunks; one role writes what another one has doubled, the last chunk in its own turn."""

    @T.prim_func
    def main(n: T.int32, X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((width,), "float32")
            made, taken = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                for k in T.serial(T.ceildiv(n, width)):
                    T.barrier_wait(taken, (k + 1) % 2)
                    for i in T.Parallel(width):
                        s[i] = X[k * width + i] * 2
                    T.barrier_arrive(made)
            with T.ws(1):
                if peeled:
                    for k in T.serial(n // width):
                        T.barrier_wait(made, k % 2)
                        T.copy(s, Y[k * width])
                        T.barrier_arrive(taken)
                    if n // width < T.ceildiv(n, width):
                        T.barrier_wait(made, n // width % 2)
                        for i in T.Parallel(width):
                            if n // width * width + i < n:
                                Y[n // width * width + i] = s[i]
                else:
                    for k in T.serial(T.ceildiv(n, width)):
                        T.barrier_wait(made, k % 2)
                        for i in T.Parallel(width):
                            if k * width + i < n:
                                Y[k * width + i] = s[i]
                        T.barrier_arrive(taken)

    return main


@pytest.mark.parametrize("peeled", [False, True])
def test_a_last_turn_behind_the_loop(peeled: bool) -> None:
    kernel = tiledsl.compile(divided(16, peeled=peeled), out_idx=[-1], target="interpret")
    for n in (0, 5, 16, 39):
        x, y = torch.randn(N), torch.zeros(N)
        expected = torch.where(torch.arange(N) < n, 2 * x, 0)
        torch.testing.assert_close(kernel(n, x, y), expected, msg=lambda text: f"n = {n}: {text}")


@pytest.mark.parametrize("depth", [1, 2])
def test_certificates_run_the_roles(depth: int) -> None:
    """The executor runs the roles by themselves, and finds what the merged program computes."""
    checks = tiledsl.compile(ring(depth=depth), out_idx=-1, target="cuda:90").verify()
    assert checks.ok, checks.failed
    assert any(each.subject.startswith("merge-roles") and each.status == "tested" for each in checks.of("tested"))


def test_a_certificate_finds_a_lost_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wait, the copy that the executor leaves under way is read too early."""
    from tiledsl.certificate.executor import machine

    kernel = tiledsl.compile(ring(depth=1), out_idx=-1, target="cuda:90")
    monkeypatch.setitem(machine.MEANINGS, "thread.wait", lambda *_: lambda _: None)
    assert not kernel.verify().ok


def products_of_parts(*, rows: bool) -> Any:
    """Two roles each multiply half of a tile: halves of the rows of A, or of the columns of B; K in two pieces."""
    m, n = (32, 64) if rows else (64, 32)

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=384):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c, d = T.alloc_fragment((m, n), "float32"), T.alloc_fragment((m, n), "float32")
            ready = T.alloc_barrier(128)
            with T.ws(2):
                for k in T.unroll(2):
                    T.tma_copy(A[0:64, k * 32 : k * 32 + 32], a[:, k * 32 : k * 32 + 32], barrier=ready)
                T.tma_copy(B, b, barrier=ready)
                T.barrier_arrive(ready)
            with T.ws(0):
                T.clear(c)
                T.barrier_wait(ready, 0)
                if rows:
                    T.gemm(a[0:32, :], b, c)
                else:
                    for k in T.unroll(2):
                        T.gemm(a[:, k * 32 : k * 32 + 32], b[k * 32 : k * 32 + 32, 0:32], c)
                T.copy(c, C[0, 0])
            with T.ws(1):
                T.clear(d)
                T.barrier_wait(ready, 0)
                if rows:
                    T.gemm(a[32:64, :], b, d)
                    T.copy(d, C[32, 0])
                else:
                    for k in T.unroll(2):
                        T.gemm(a[:, k * 32 : k * 32 + 32], b[k * 32 : k * 32 + 32, 32:64], d)
                    T.copy(d, C[0, 32])

    return main


@pytest.mark.parametrize("rows", [False, True])
def test_products_of_parts_of_tiles(run: Any, rows: bool) -> None:
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    torch.testing.assert_close(
        run(products_of_parts(rows=rows), a, b, torch.empty(64, 64)), a.float() @ b.float(), rtol=1e-3, atol=1e-3
    )


def test_parts_of_a_tile_become_tiles() -> None:
    text = lowered(products_of_parts(rows=True))
    assert text.count("%a = tile.alloc : buffer<32*64*float16, shared>") + text.count("%a_1 = tile.alloc") == 2
    assert "shape = (64, 32), source_axes = (0, 1)" not in text  # A comes in two copies, one for each half of the rows


# What is refused


def test_a_wait_with_the_wrong_parity() -> None:
    error = refused(ring(full=lambda k: (k // 2 + 1) % 2))  # the first wait lets through at once, so that free is early
    assert "may find free[...] one phase ahead" in str(error)
    assert any("the last arrival of the next phase" in str(note) for note in error.notes)


def test_a_parity_that_forgets_the_depth_of_the_ring() -> None:
    assert "this wait is not implied" in str(refused(ring(full=lambda k: k % 2)))


def test_a_producer_that_waits_for_the_first_phase_of_nobody() -> None:
    error = refused(ring(empty=lambda k: k // 2 % 2))
    assert "this wait is not implied" in str(error) or "wait for each other" in str(error)


def test_too_many_arrivals_are_asked_for() -> None:
    error = refused(ring(arrivals=256))
    assert "this wait is not implied" in str(error)
    assert "128 of its 256 arrivals" in str(error)


def test_more_threads_arrive_than_a_phase_has() -> None:
    error = refused(ring(arrivals=64))
    assert "128 threads arrive at ready" in str(error)
    assert any("T.alloc_barrier takes the number of threads" in str(note) for note in error.notes)


def test_nobody_gives_a_tile_back() -> None:
    error = refused(ring(released=False))
    assert "this wait is not implied" in str(error)
    assert "0 of its 128 arrivals" in str(error)
    assert any("nobody arrives at free" in str(note) for note in error.notes)


def handed(*, wait: bool = True, arrive_first: bool = False, again: bool = False) -> Any:
    """One role writes a tile that another one reads; `again`, and then overwrites it."""

    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16,), "float32")
            ready = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(s, 1)
                if arrive_first:
                    T.barrier_arrive(ready)
                T.copy(X, s)
                if not arrive_first:
                    T.barrier_arrive(ready)
                if again:
                    T.fill(s, 2)
            with T.ws(0):
                if wait:
                    T.barrier_wait(ready, 0)
                T.copy(s, Y)

    return main


def test_a_tile_is_handed_over(run: Any) -> None:
    x = torch.randn(16)
    torch.testing.assert_close(run(handed(), x, torch.empty(16)), x)


@pytest.mark.parametrize("mistake", [{"wait": False}, {"arrive_first": True}, {"again": True}])
def test_a_wait_is_missing(mistake: dict[str, bool]) -> None:
    error = refused(handed(**mistake))
    assert "a wait is missing" in str(error)
    assert any("this wrote s" in str(note) or "this read s" in str(note) for note in error.notes)


def test_a_copy_that_nobody_has_waited_for() -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((16,), "float32")
            ready = T.alloc_barrier(128)
            T.tma_copy(X, s, barrier=ready)
            T.barrier_arrive(ready)
            T.copy(s, Y)

    assert "a wait is missing" in str(refused(main))


def test_two_roles_that_wait_for_each_other() -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16,), "float32")
            one, two = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                T.barrier_wait(two, 0)
                T.copy(X, s)
                T.barrier_arrive(one)
            with T.ws(1):
                T.barrier_wait(one, 0)
                T.copy(s, Y)
                T.barrier_arrive(two)

    assert "this wait is not implied" in str(refused(main))


def test_a_consumer_with_one_turn_less() -> None:
    @T.prim_func
    def main(n: T.int32, X: T.Tensor((16, N), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16,), "float32")
            ready, free = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(1):
                for k in T.serial(n):
                    T.barrier_wait(free, (k + 1) % 2)
                    T.copy(X[:, k], s)
                    T.barrier_arrive(ready)
            with T.ws(0):
                for k in T.serial(n - 1):
                    T.barrier_wait(ready, k % 2)
                    T.copy(s, Y)
                    T.barrier_arrive(free)

    message = str(refused(main))
    assert "wait for each other" in message or "this wait is not implied" in message


def test_a_phase_that_nobody_looks_at_in_time() -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16,), "float32")
            ready = T.alloc_barrier(128)
            with T.ws(1):
                T.copy(X, s)
                T.barrier_arrive(ready)
                T.barrier_arrive(ready)
            with T.ws(0):
                T.barrier_wait(ready, 0)
                T.copy(s, Y)

    assert "may find ready one phase ahead" in str(refused(main))


def test_registers_are_not_handed_over() -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            x = T.alloc_fragment((16,), "float32")
            ready = T.alloc_barrier(128)
            with T.ws(1):
                T.copy(X, x)
                T.barrier_arrive(ready)
            with T.ws(0):
                T.barrier_wait(ready, 0)
                T.copy(x, Y)

    assert "x is in registers" in str(refused(main))


def test_a_barrier_of_the_block_in_a_role() -> None:
    @T.prim_func
    def main(Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=256):
            ready = T.alloc_barrier(128)
            with T.ws(1):
                T.sync_threads()
                T.barrier_arrive(ready)
            with T.ws(0):
                T.barrier_wait(ready, 0)
                T.fill(Y[0:16], 1)

    assert "T.sync_threads where not all threads of the block come" in str(refused(main))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("T.alloc_barrier(0)", "at least 1"),
        ("T.alloc_barrier([])", "no barriers in an empty sequence"),
        ("T.barrier_arrive(s)", "needs a barrier of T.alloc_barrier"),
        ("T.barrier_arrive(bars)", "bars has 2 barriers; say which one"),
        ("T.barrier_arrive(bars[2])", "index 2 is outside"),
        ("T.mbarrier_arrive(bars[0], 1)", "there are no clusters"),
        ("T.barrier_wait(bars[0], 0.5)", "it is 0 or 1"),
        ("T.barrier_wait(bars[0], 2)", "the parity of this wait is 2; it is 0 or 1"),
        ("T.tma_copy(X, s)", "nobody could wait for a copy to s"),
        ("T.tma_copy(X, s, barrier=bars[0], cluster_mask=3)", "there are no clusters"),
        ("T.tma_copy(X, s, barrier=bars[0], fast=True)", "no option 'fast'"),
        ("T.ptx_cp_async(s, X, 4)", "copies between two T.access_ptr"),
        ("T.ptx_cp_async(T.access_ptr(s[0]), T.access_ptr(X[0]), 0)", "no number of elements"),
        ("T.access_ptr(s)", "addresses have no Triton form"),
    ],
)
def test_arguments(statement: str, message: str, tmp_path: Any) -> None:
    text = f"""import tiledsl.language as T

@T.prim_func
def main(X: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((16,), "float32")
        bars = T.alloc_barrier([128, 128])
        T.fill(X[0:16], 1)
        {statement}
"""
    path = tmp_path / "program.py"
    path.write_text(text)
    names: dict[str, Any] = {"__name__": "program"}
    with pytest.raises(TileError, match="(?s).*" + message.replace("(", r"\(").replace("[", r"\[")):
        exec(compile(text, str(path), "exec"), names)
        tiledsl.compile(names["main"], target="interpret")


@pytest.mark.parametrize("groups", ["", "-1", "True", "2", "0, 2", "2, 0"])
def test_warp_groups(groups: str, tmp_path: Any) -> None:
    text = f"""import tiledsl.language as T

@T.prim_func
def main(X: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=256):
        with T.ws({groups}):
            T.fill(X[0:16], 1)
"""
    path = tmp_path / "program.py"
    path.write_text(text)
    names: dict[str, Any] = {"__name__": "program"}
    with pytest.raises(TileError, match=r"T\.ws"):
        exec(compile(text, str(path), "exec"), names)
        tiledsl.compile(names["main"], target="interpret")
