"""Jobs of a process on each GPU that tune together, over NCCL: `python rank_jobs.py JOB RANKS FOLDER`.

Each rank runs the function named JOB and writes what it returns, or the error it raises, to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_MOST_SECONDS = 240


def shown(result: Any) -> list[Any]:
    return [result.config, result.latency, result.from_cache, [trial.status for trial in result.trials]]


def product_of_all(parts: int, A: Any, B: Any) -> Any:
    """A of all ranks, times B: gathered in parts, each of which is multiplied."""
    out = []
    for piece in A.chunk(parts):
        whole = piece.new_empty(dist.get_world_size() * len(piece), piece.shape[1])
        dist.all_gather_into_tensor(whole, piece)
        out.append((whole @ B).view(-1, len(piece), B.shape[1]))
    return torch.cat(out, dim=1).flatten(0, 1)


def inputs(rank: int) -> Any:
    torch.manual_seed(rank)
    return [torch.randn(2048, 2048, dtype=torch.float16, device="cuda") for _ in range(2)]


def gathered(rank: int) -> Any:
    """A function with a collective inside, on copies of its arguments, checked on every rank."""
    from tiledsl.autotuner import tune_function

    def reference(A: Any, B: Any) -> Any:
        return product_of_all(1, A, B)

    def make() -> Any:
        @tune_function(
            [{"parts": 1}, {"parts": 2}, {"parts": 4}],
            ref_prog=reference, group=True, group_timeout=120, warmup=5, rep=40,
        )  # fmt: skip
        def run(A: Any, B: Any, parts: int) -> Any:
            return product_of_all(parts, A, B)

        return run

    A, B = inputs(rank)
    function = make()
    torch.testing.assert_close(function(A, B), reference(A, B), rtol=1e-2, atol=0.5)
    first = shown(function.tune(A, B))
    dist.barrier()
    return [first, shown(make().tune(A, B))]


def kernels(rank: int) -> Any:
    """A kernel of tiledsl, measured on each rank's GPU."""
    import tiledsl
    from tests.autotune.programs import gemm_builder

    configs = [{"block": block, "stages": stages} for block in (64, 128) for stages in (2, 3)]
    tuned = tiledsl.autotune(
        configs=configs, ref_prog=torch.matmul, group=True, warmup=5, rep=40
    )(tiledsl.jit(out_idx=-1)(gemm_builder))  # fmt: skip
    result = tuned(size=2048)
    A, B = inputs(rank)
    torch.testing.assert_close(result(A, B), A @ B, rtol=1e-2, atol=0.5)
    return shown(result)


def in_context(rank: int) -> Any:
    """A kernel of Triton and one of tiledsl, with a sum over the ranks between them."""
    import tiledsl
    from tests.autotune.programs import gemm_builder
    from tests.gpu.triton_kernels import add_one
    from tiledsl.autotuner import tune_in_context

    configs = [{"block": block, "stages": 2} for block in (64, 128)]
    gemm = tiledsl.autotune(configs=configs)(tiledsl.jit(out_idx=-1)(gemm_builder))
    runs = []

    @tune_in_context(group=True, n_warmup=2, n_repeat=3)
    def step(A: Any, B: Any) -> Any:
        runs.append(1)
        C = gemm(size=2048)(A, B)
        dist.all_reduce(C)
        return add_one(C)

    A, B = inputs(rank)
    expected = A @ B
    dist.all_reduce(expected)
    torch.testing.assert_close(step(A, B), expected + 1, rtol=2e-2, atol=1.0)
    count = len(runs)
    step(A, B)
    winner = next(iter(add_one.kernel.cache.values())).kwargs["BLOCK"]
    return [gemm(size=2048).config, winner, count, len(runs)]


def main(job: str, ranks: str, folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
    # Packages may come from PYTHONPATH too.
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]))
    shared |= {"MASTER_PORT": str(port), "PYTHONPATH": path}
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "one", job, folder], env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(int(ranks))
    ]
    try:
        for child in children:
            child.wait(_MOST_SECONDS)
    finally:  # one that has failed may leave the others in a collective
        for child in children:
            child.kill()


def one(job: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        answer = {"value": globals()[job](rank)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(folder, f"{rank}.json").write_text(json.dumps(answer))
    if "value" in answer:
        dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
