"""Jobs of several processes that tune together, over gloo: `python rank_jobs.py JOB RANKS FOLDER`.

Each rank runs the function named JOB and writes what it returns, or the error it raises, to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tiledsl.errors import TileError

TIMES = {"a": [1.0, 9.0, 1.0], "b": [3.0, 2.0, 3.0], "c": [4.0, 1.0, 4.0]}  # the slowest: 9, 3, 4
BLOCKS = {16: [1.0, 9.0], 32: [3.0, 2.0], 64: [4.0, 1.0], 128: [0.1, 0.1]}


def by_rank(config: dict[str, Any], call: Any) -> float:
    """A clock: milliseconds of a way on this rank. It calls, so that collectives inside run."""
    call()
    return TIMES[config["way"]][dist.get_rank()]


def tuned(ways: str = "abc", fails_on: int = -1, early: bool = False, **options: Any) -> Any:
    """A tuned function that sums over the ranks. Way b raises on one of them if asked: at the end, or early."""
    from tiledsl.autotuner import tune_function

    given = {"timer": "tests.autotune.rank_jobs:by_rank", "group": True, "group_timeout": 20, **options}

    @tune_function([{"way": way} for way in ways], **given)
    def total(A: Any, group: Any = None, way: str = "") -> Any:
        fails = way == "b" and dist.get_rank() == fails_on
        whole = A.clone()
        if not (fails and early):
            dist.all_reduce(whole, group=group)
        if fails:
            raise ValueError("not here")
        return whole

    return total


def shown(result: Any) -> list[Any]:
    trials = [[trial.status, trial.latency, trial.message] for trial in result.trials]
    return [result.config["way"], result.from_cache, trials]


def reference(A: Any, *_: Any) -> Any:
    whole = A.clone()
    dist.all_reduce(whole)
    return whole


def minima(rank: int) -> Any:
    A = torch.ones(4) * (rank + 1)
    function = tuned(ref_prog=reference)
    value = function(A)
    again = function.tune(A).from_cache
    return [shown(function.tune(A)), value.tolist(), again, shown(tuned(ref_prog=reference).tune(A))]


def one_fails(rank: int) -> Any:
    return shown(tuned(fails_on=1, cache=False).tune(torch.ones(3)))


def one_fails_early(rank: int) -> Any:
    return shown(tuned(fails_on=1, early=True, cache=False, group_timeout=0.5).tune(torch.ones(3)))


def subgroups(rank: int) -> Any:
    """Ranks 0 and 1 tune for one shape, while ranks 2 and 3 tune for another."""
    TIMES.update(a=[1.0, 9.0, 9.0, 9.0], b=[3.0, 2.0, 9.0, 9.0], c=[9.0, 9.0, 2.0, 3.0])
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    function = tuned(group=lambda group: group)
    value = function(torch.ones(4 + rank // 2), group=groups[rank // 2])
    return [shown(function.tune(torch.ones(4 + rank // 2), group=groups[rank // 2])), value.tolist()]


def not_a_member(rank: int) -> Any:
    """torch.distributed.new_group returns no group on rank 2, whose decorator stands in the same program."""
    group = dist.new_group([0, 1])
    function = tuned("a", group=group)
    if rank < 2:
        return function(torch.ones(2), group=group).tolist()
    return [_message(lambda: function(torch.ones(2))), _message(lambda: tuned(group=_no_group).tune(torch.ones(2)))]


def _no_group(A: Any) -> Any:
    raise LookupError("none")


def _message(call: Any) -> str:
    try:
        return f"returned {call()}"
    except TileError as error:
        return error.message


def other_configs(rank: int) -> Any:
    return shown(tuned("abc" if rank == 0 else "abd").tune(torch.ones(3)))


def other_shapes(rank: int) -> Any:
    return shown(tuned().tune(torch.ones(3 + rank)))


def dies(rank: int) -> Any:
    def prune(config: Any) -> None:
        if rank == 1:
            os._exit(3)

    return shown(tuned(prune=prune, group_timeout=0.5).tune(torch.ones(3)))


def gives_up(rank: int) -> Any:
    def timer_stops(config: Any) -> None:
        if rank == 1:
            raise KeyboardInterrupt

    return shown(tuned(prune=timer_stops).tune(torch.ones(3)))


def pruning(rank: int) -> Any:
    """Each rank leaves another way out."""
    return shown(tuned(prune=lambda config, A: config["way"] == "ab"[rank] and f"on {A.numel()}").tune(torch.ones(3)))


def two_places(rank: int) -> Any:
    """Ranks 0 and 1 are one machine, 2 and 3 another. Then the second machine loses its results."""
    from tiledsl.autotuner.storage import journal

    os.environ.update(LOCAL_WORLD_SIZE="2", RANK=str(rank))
    TIMES.update(a=[1.0] * 4, b=[2.0] * 4, c=[3.0] * 4)
    store = Path(os.environ["TILEDSL_CACHE_DIR"]) / f"machine-{rank // 2}"
    written: list[str] = []
    write_file = journal.write_file
    journal.write_file = lambda path, content: (written.append(path.name), write_file(path, content))  # type: ignore
    first = shown(tuned(store=store).tune(torch.ones(3)))
    dist.barrier()
    second = shown(tuned(store=store).tune(torch.ones(3)))
    dist.barrier()
    if rank == 2:
        for path in store.rglob("best.json"):
            path.unlink()
        for path in store.rglob("trials.jsonl"):
            path.unlink()
    dist.barrier()
    third = shown(tuned(store=store).tune(torch.ones(3)))
    return [first[1], second[1], third[1], written]


def by_block(config: dict[str, Any], call: Any) -> float:
    call()
    return BLOCKS[config["block"]][dist.get_rank()]


def kernels(rank: int) -> Any:
    """A kernel, tuned twice; block 128 is left out on one rank."""
    import tiledsl
    from tests.autotune.programs import scale_builder, twice

    def prune(config: dict[str, Any], size: int) -> str | None:
        return f"not for {size}" if config["block"] == 128 and rank == 1 else None

    outcomes = []
    for _ in range(2):
        options: Any = {"isolate": False, "timer": "tests.autotune.rank_jobs:by_block", "target": "interpret"}
        tuned = tiledsl.autotune(
            configs=[{"block": block} for block in (128, 16, 32, 64)],
            ref_prog=twice, prune=prune, group=True, group_timeout=60, **options,
        )(tiledsl.jit(out_idx=-1)(scale_builder))  # fmt: skip
        result = tuned(size=64)
        trials = [[trial.status, trial.latency, trial.message] for trial in result.trials]
        outcomes.append([result.config["block"], result.from_cache, trials])
        dist.barrier()
    return [*outcomes, tuned(size=64).from_cache]


def nested(rank: int) -> Any:
    """A function whose configurations call functions that the same ranks tune; one of those has no way that works."""
    from tiledsl.autotuner import tune_function

    inner = tuned(cache=False)
    hopeless = tuned("ab", cache=False, prune=lambda config: "no")

    @tune_function(
        [{"way": way} for way in "abc"], group=True, group_timeout=20, cache=False,
        timer="tests.autotune.rank_jobs:by_rank",
    )  # fmt: skip
    def outer(A: Any, way: str = "") -> Any:
        return hopeless(A) if way == "a" else inner(A) * 2

    A = torch.ones(3)
    return [outer(A).tolist(), shown(outer.tune(A)), shown(inner.tune(A))]


def in_context(rank: int, fails: bool = False, uneven: bool = False) -> Any:
    """Two kernels with a sum over the ranks between them; way b of the second one may fail on rank 1."""
    from tiledsl.autotuner import tune_function, tune_in_context

    ways: list[str] = []

    @tune_function([{"way": "a"}, {"way": "b"}])
    def first(A: Any, way: str = "") -> Any:
        return A * 2

    @tune_function([{"way": "a"}, {"way": "b"}, {"way": "c"}])
    def second(A: Any, way: str = "") -> Any:
        if fails and way == "b" and rank == 1:
            raise ValueError("not here")
        return A + 1

    def step(A: Any) -> Any:
        A = first(A)
        dist.all_reduce(A)
        ways.append("run")
        return second(A[: len(A) - rank] if uneven else A)

    options: Any = {"n_warmup": 1, "n_repeat": 2, "timer": "tests.autotune.rank_jobs:by_rank", "group_timeout": 20}
    run = tune_in_context(step, group=True, **options)
    value = run(torch.ones(3)).tolist()
    runs = len(ways)
    again = tune_in_context(step, group=True, **options)
    again(torch.ones(3))
    found = [each.tune(torch.ones(3)) for each in (first, second)]
    return [value, runs, len(ways) - runs, *map(shown, found)]


def in_context_one_fails(rank: int) -> Any:
    return in_context(rank, fails=True)


def in_context_uneven(rank: int) -> Any:
    return in_context(rank, uneven=True)


def main(job: str, ranks: str, folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(int(ranks)):
        child = os.fork()
        if child == 0:
            _one(job, rank, int(ranks), Path(folder), port)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _one(job: str, rank: int, ranks: int, folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    start = time.monotonic()
    try:
        answer = {"value": globals()[job](rank)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    answer["seconds"] = time.monotonic() - start
    (folder / f"{rank}.json").write_text(json.dumps(answer))
    with_rank_0 = time.monotonic() + 2  # the store lives in its process
    while rank == 0 and time.monotonic() < with_rank_0 and len(list(folder.glob("*.json"))) < ranks:
        time.sleep(0.02)
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.modules["tests.autotune.rank_jobs"] = sys.modules["__main__"]  # clocks are found by name
    main(*sys.argv[1:])
