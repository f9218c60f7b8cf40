"""Random numbers in kernels against Philox written down in Python and Triton's own."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import forked
from tiledsl.errors import TileError

LOW = (1 << 32) - 1


def philox(seed: int, sequence: int, number: int) -> list[int]:
    """Philox 4x32 with 10 rounds."""
    c, key = [number & LOW, number >> 32, sequence & LOW, sequence >> 32 & LOW], [seed & LOW, seed >> 32 & LOW]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ key[0], b & LOW, a >> 32 ^ c[3] ^ key[1], a & LOW]
        key = [key[0] + 0x9E3779B9 & LOW, key[1] + 0xBB67AE85 & LOW]
    return c


def drawn(seed: int, sequence: int, start: int, count: int) -> list[int]:
    """Words of a sequence, of which each counter gives four."""
    return [philox(seed, sequence, n // 4)[n % 4] for n in range(start, start + count)]


def words(numbers: torch.Tensor) -> list[int]:
    return [number & LOW for number in numbers.view(torch.int32).flatten().tolist()]


def test_the_reference_gives_the_published_numbers() -> None:
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1)
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize(("seed", "off"), [(-3, (1 << 32) - 5), (0x123456789ABCDEF0, 1 << 40)])
def test_numbers_of_each_block_loop_and_iteration(run: Any, seed: int, off: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 3, 2, 5, 6), "uint32"), B: T.Tensor((2, 3), "uint32")):
        with T.Kernel(2, 3) as (bx, by):
            T.rng_init(seed, off=off)
            B[bx, by] = T.rng_rand()
            for k in T.serial(2):
                for i, j in T.Parallel(5, 6):
                    if i != 2:
                        A[bx, by, k, i, j] = T.rng_rand()
                    else:
                        A[bx, by, k, i, j] = 0

    a, b = run(main, out_idx=(0, 1))
    a = a.view(torch.int32)
    for bx in range(2):
        for by in range(3):
            block, start = by * 2 + bx, off + 1
            assert words(b.view(torch.int32)[bx, by]) == drawn(seed, block, off, 1)
            for k in range(2):
                start = -(-start // 4) * 4
                row = drawn(seed, block, start, 30)
                assert words(a[bx, by, k]) == [0 if n // 6 == 2 else row[n] for n in range(30)]
                start += 30
    assert tiledsl.compile(main, out_idx=[0, 1], target="cuda:90").resources.registers > 0


def test_a_second_draw_and_values_as_seed_and_sequence(run: Any) -> None:
    @T.prim_func
    def main(S: T.Tensor((4,), "int64"), seed: T.int32, A: T.Tensor((4, 2, 8), "uint32")):
        with T.Kernel(4) as bx:
            T.rng_init(seed, S[bx], bx)
            for i in T.Parallel(8):  # from word 0, or 4
                first = T.rng_rand()
                A[bx, 1, i] = T.rng_rand()
                A[bx, 0, i] = first

    sequences = torch.tensor([0, -1, 1 << 33, 5])
    a = run(main, sequences, -9)
    for bx, sequence in enumerate(sequences.tolist()):
        assert words(a[bx]) == drawn(-9, sequence, 4 * (bx > 0), 16)


def test_sequence_zero_is_that_of_triton(run: Any, tmp_path: Path) -> None:
    program = tmp_path / "drawn.py"
    program.write_text(
        "import torch, triton\nimport triton.language as tl\n\n\n@triton.jit\ndef draw(out, seed):\n"
        "    n = tl.arange(0, 4)\n    a, b, c, d = tl.randint4x(seed, n)\n"
        "    tl.store(out + 4 * n, a.to(tl.int64))\n    tl.store(out + 4 * n + 1, b.to(tl.int64))\n"
        "    tl.store(out + 4 * n + 2, c.to(tl.int64))\n    tl.store(out + 4 * n + 3, d.to(tl.int64))\n\n\n"
        "out = torch.empty(16, dtype=torch.int64)\ndraw[(1,)](out, 1234567)\nprint(*out.tolist())\n"
    )
    done = forked.run([program], env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr

    @T.prim_func
    def main(A: T.Tensor((16,), "uint32")):
        with T.Kernel(1):
            T.rng_init(1234567)
            for i in T.Parallel(16):
                A[i] = T.rng_rand()

    assert words(run(main)) == [int(number) & LOW for number in done.stdout.split()]


@pytest.mark.parametrize("bit", [32, 64])
def test_floats(run: Any, bit: int) -> None:
    dtype = f"float{bit}"

    @T.prim_func
    def main(A: T.Tensor((64, 128), dtype), B: T.Tensor((64, 128), dtype)):
        with T.Kernel(1):
            T.rng_init(11, 3)
            for k in T.serial(16):
                for i, j in T.Parallel(4, 128):
                    A[4 * k + i, j] = T.rng_rand_float(bit=bit)
            for k in T.serial(16):
                for i, j in T.Parallel(4, 128):
                    B[4 * k + i, j] = T.rng_rand_float(bit, dist="normal")

    uniform, normal = run(main, out_idx=(0, 1))
    count = uniform.numel()
    bits = torch.tensor(drawn(11, 3, 0, 3 * bit // 32 * count))
    if bit == 32:
        u = bits.double() * 2.0**-32 + 2.0**-33
    else:
        u = ((bits[::2] >> 5) * 2**26 + (bits[1::2] >> 6) + 1).double() * 2.0**-53
    close = {"rtol": 1e-5, "atol": 1e-5} if bit == 32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(uniform.flatten().double(), u[:count], **close)
    assert uniform.min() > 0 and uniform.max() <= 1
    boxed = torch.sqrt(-2 * torch.log(u[count::2])) * torch.cos(2 * math.pi * u[count + 1 :: 2])
    torch.testing.assert_close(normal.flatten().double(), boxed, **close)
    # Within five standard errors of what the distributions have.
    for numbers, mean, variance in ((uniform, 0.5, 1 / 12), (normal, 0.0, 1.0)):
        assert abs(numbers.mean().item() - mean) < 5 * math.sqrt(variance / count)
    assert abs(normal.var().item() - 1) < 5 * math.sqrt(2 / count)
    assert tiledsl.compile(main, out_idx=[0, 1], target="cuda:90").resources.registers > 0


def test_a_condition_and_a_while_loop_draw(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2,), "uint32"), N: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            T.rng_init(5, 1)
            n = T.alloc_var("int32", 0)
            while T.rng_rand() > 1 << 30:
                n += 1
            N[0] = n
            if n > 100:
                A[1] = T.rng_rand()
            A[0] = T.rng_rand()

    a, n = run(main, out_idx=(0, 1))
    have = drawn(5, 1, 0, 1000)
    last = next(i for i, word in enumerate(have) if word <= 1 << 30)
    assert n.item() == last and words(a)[0] == have[last + 1]


def test_branches_start_sequences_and_loops_continue_them(run: Any) -> None:
    @T.prim_func
    def main(N: T.Tensor((2,), "int32"), A: T.Tensor((2, 3, 40), "uint32"), B: T.Tensor((2, 8), "uint32")):
        with T.Kernel(2) as bx:
            if bx == 0:
                T.rng_init(1, 2, 3)
            else:
                T.rng_init(4, 5, 6)
            tile = T.alloc_shared((8,), "uint32")
            for k in T.Pipelined(3, num_stages=2):
                for i in T.Parallel(40):
                    if i < N[bx]:
                        A[bx, k, i] = T.rng_rand()
            for i in T.Parallel(8):
                tile[7 - i] = T.rng_rand()
            T.copy(tile, B[bx, :])

    counts = [40, 9]
    a = torch.zeros(2, 3, 40, dtype=torch.int32).view(torch.uint32)
    b = torch.zeros(2, 8, dtype=torch.int32).view(torch.uint32)
    run(main, torch.tensor(counts, dtype=torch.int32), a, b, out_idx=())
    for bx, (seed, sequence, start) in enumerate([(1, 2, 3), (4, 5, 6)]):
        row = drawn(seed, sequence, -(-start // 4) * 4, 128)
        for k in range(3):
            have = words(a.view(torch.int32)[bx, k])
            assert have == row[40 * k : 40 * k + counts[bx]] + [0] * (40 - counts[bx])
        assert words(b.view(torch.int32)[bx])[::-1] == row[120:128]
    assert tiledsl.compile(main, target="cuda:90").resources.registers > 0


@pytest.mark.parametrize("most", [7, 4096])
def test_a_parallel_loop_whose_extent_is_known_at_run_time(run: Any, most: int) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "uint32")):
        with T.Kernel(1):
            T.rng_init(1, 2)
            for i in T.Parallel(n):
                A[i] = T.rng_rand()

    a = torch.zeros(most, dtype=torch.int32).view(torch.uint32)
    run(main, a, out_idx=())
    assert words(a.view(torch.int32)) == drawn(1, 2, 0, most)


@pytest.mark.parametrize("columns", [1, 6, 12])
def test_the_numbers_do_not_depend_on_how_they_share_counters(run: Any, columns: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, columns), "uint32"), B: T.Tensor((5, columns), "float32"), C: T.Tensor((2,), "float64")):
        with T.Kernel(1):
            T.rng_init(8, off=2)
            C[0] = T.rng_rand_float(bit=64)
            for i, j in T.Parallel(5, columns):
                A[i, j] = T.rng_rand()
                B[i, j] = T.rng_rand_float(dist="normal")
            C[1] = T.rng_rand_float(bit=64)

    a, b, c = run(main, out_idx=(0, 1, 2))
    count, start = 5 * columns, -(-(4 + 5 * columns) // 4) * 4
    assert words(a) == drawn(8, 0, 4, count)
    pairs = torch.tensor(drawn(8, 0, start, 2 * count)).double() * 2.0**-32 + 2.0**-33
    boxed = torch.sqrt(-2 * torch.log(pairs[::2])) * torch.cos(2 * math.pi * pairs[1::2])
    torch.testing.assert_close(b.flatten().double(), boxed, rtol=1e-5, atol=1e-5)
    after = -(-(start + 2 * count) // 2) * 2
    bits = drawn(8, 0, 2, 2) + drawn(8, 0, after, 2)
    assert c.tolist() == [((high >> 5) * 2**26 + (low >> 6) + 1) * 2.0**-53 for high, low in (bits[:2], bits[2:])]


def test_four_neighbours_share_a_counter() -> None:
    """A block of 128 threads with 4 elements each computes one counter a thread, and moves nothing between threads."""

    @T.prim_func
    def main(A: T.Tensor((512,), "uint32")):
        with T.Kernel(1, threads=128):
            T.rng_init(1)
            for i in T.Parallel(512):
                A[i] = T.rng_rand()

    kernel = tiledsl.compile(main, target="cuda:90")
    assert "tl.arange(0, 128)" in kernel.source and kernel.source.count("tl.arange(0, 512)") == 1  # of the store
    assert kernel.resources.shared_bytes == 0 and kernel.verify().ok


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in T.Parallel(4):\n    A[i] = T.rng_rand()", "T.rng_rand: there is no T.rng_init(seed) before it"),
        ("T.rng_init(1.5)", "T.rng_init: seed is float 1.5; it is an integer of up to 64 bits"),
        ("T.rng_init(1, 'a')", "T.rng_init: seq is"),
        ("T.rng_init(1, generator='curandStateXORWOW_t')", "T.rng_init: the generator is"),
        ("for i in T.Parallel(4):\n    T.rng_init(i)", "T.rng_init: a block has one sequence"),
        ("T.rng_init(1)\nA[0] = T.rng_rand_float(16)", "bit is int 16; it is 32 or 64"),
        ("T.rng_init(1)\nA[0] = T.rng_rand_float(dist='cauchy')", "it is 'uniform' or 'normal'"),
        (
            "T.rng_init(1)\nfor i in T.Parallel(4):\n    for k in T.serial(3):\n        A[i] = T.rng_rand()",
            "draws a fixed number of times, and so not in a serial loop",
        ),
    ],
)
def test_mistakes(body: str, message: str) -> None:
    head = '@T.prim_func\ndef main(A: T.Tensor((4,), "uint32")):\n    with T.Kernel(1):\n'
    text = head + "".join(f"        {line}\n" for line in body.split("\n"))
    with pytest.raises(TileError) as caught:
        tiledsl.compile(tiledsl.parse(text), target="interpret")
    assert message in str(caught.value) and caught.value.loc is not None
