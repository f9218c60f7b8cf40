"""Host time of one launch, in microseconds: Triton's, this project's and torch's, in one process, interleaved.

    python benchmarks/launch.py [--json FILE]

A kernel that the GPU finishes sooner than the host can launch it is launched in chunks of 100, with a synchronisation
between chunks that is not timed; so what is timed is the host's work alone. Candidates take turns. Printed are the
median over chunks and the least, for one launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

import tiledsl
import tiledsl.language as T
from tiledsl.runtime import launch_triton

CHUNK = 100
CHUNKS = 60
SIZE = 64


def added(rows: Any) -> Any:
    @T.prim_func
    def added(A: T.Tensor((rows, SIZE), "float16"), B: T.Tensor((rows, SIZE), "float16"), C: T.Tensor((rows, SIZE), "float16")):  # fmt: skip # noqa: E501
        with T.Kernel(T.ceildiv(rows, 16), threads=128) as by:
            for i, j in T.Parallel(16, SIZE):
                C[by * 16 + i, j] = A[by * 16 + i, j] + B[by * 16 + i, j]

    return added


@tiledsl.jit
def eager_added(A, B, block=16):
    rows = T.const("rows")
    A: T.Tensor((rows, SIZE), "float16")
    B: T.Tensor((rows, SIZE), "float16")
    C = T.empty((rows, SIZE), "float16")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
        for i, j in T.Parallel(block, SIZE):
            C[by * block + i, j] = A[by * block + i, j] + B[by * block + i, j]
    return C


def microseconds(candidates: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Median and least host time of a call, by name."""
    chunks: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        for _ in range(CHUNK):
            run()
    for _ in range(CHUNKS):
        for name, run in candidates.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CHUNK):
                run()
            chunks[name].append((time.perf_counter() - start) / CHUNK * 1e6)
    torch.cuda.synchronize()
    return {name: (statistics.median(times), min(times)) for name, times in chunks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "a launch is measured on a GPU, and torch finds none\n")
    a, b, c = (torch.randn(SIZE, SIZE, dtype=torch.float16, device="cuda") for _ in range(3))
    into = tiledsl.compile(added(SIZE), target="cuda")
    allocating = tiledsl.compile(added(SIZE), target="cuda", out_idx=-1)
    dynamic = tiledsl.compile(added(T.dynamic("rows")), target="cuda")
    bound, bound_allocating = into.bind(a, b, c), allocating.bind(a, b)
    for run in (lambda: into(a, b, c), lambda: dynamic(a, b, c), bound):
        c.zero_()
        run()
        torch.testing.assert_close(c, a + b)
    for returned in (allocating(a, b), bound_allocating(), eager_added(a, b)):
        torch.testing.assert_close(returned, a + b)

    emitted = into.module.kernels[0]
    jitted = getattr(into.loaded, emitted.name)
    options = {"num_warps": emitted.num_warps, "num_stages": emitted.num_stages, **emitted.options}
    compiled = jitted[emitted.grid](a, b, c, **options)
    run_compiled = compiled[(*emitted.grid, 1, 1)[:3]]
    caller = into.caller(3)
    assert caller.first is not None, "the call was not recognised as one that can be replayed"
    guard, signature = caller.first
    assert signature.plan is not None
    pointers = [each.data_ptr() for each in (a, b, c)]
    _, stream_of, _ = launch_triton.device_functions()
    call = launch_triton.driver_call(compiled)
    first = (*emitted.grid, 1, 1)[:3]
    given = (tuple(pointers),) if call.as_tuple else tuple(pointers)
    names = {
        "Triton: kernel[grid](a, b, c)": lambda: jitted[emitted.grid](a, b, c, **options),
        "Triton: compiled_kernel[grid](a, b, c)": lambda: run_compiled(a, b, c),
        "Triton: its C launcher alone": lambda: call.call(*first, stream_of(0), *call.head, *given),
        "kernel(a, b, c), checked": lambda: into(a, b, c),
        "  of that: the guard": lambda: guard(a, b, c),
        "  of that: the launch": lambda: signature.plan(*pointers),
        "kernel(a, b, c), a size dynamic": lambda: dynamic(a, b, c),
        "kernel.bind(a, b, c)()": bound,
        "kernel(a, b), allocating": lambda: allocating(a, b),
        "kernel.bind(a, b)()": bound_allocating,
        "the emitted host function": lambda: caller.host(a, b, c),
        "@tiledsl.jit eager, f(a, b), allocating": lambda: eager_added(a, b),
        "torch.add(a, b, out=c)": lambda: torch.add(a, b, out=c),
        "torch.add(a, b)": lambda: torch.add(a, b),
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=c),
        "torch.empty": lambda: torch.empty((SIZE, SIZE), dtype=torch.float16, device="cuda"),
    }
    rows = microseconds(names)
    nothing, _ = microseconds({"nothing": lambda: None})["nothing"]
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}; microseconds a call"
    )
    print(f"{'':44} median   least   ({nothing:.2f} of it is the loop)")
    for name, (median, least) in rows.items():
        print(f"{name:44} {median:6.2f}  {least:6.2f}")
    ours, tritons = rows["kernel(a, b, c), checked"], rows["Triton: kernel[grid](a, b, c)"]
    medians, leasts = (here / there for here, there in zip(ours, tritons, strict=True))
    print(f"{'kernel(a, b, c), of the time of Triton':44} {medians:6.3f}  {leasts:6.3f}")
    if arguments.json:
        found = {name.strip(): {"median_us": median, "least_us": least} for name, (median, least) in rows.items()}
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
