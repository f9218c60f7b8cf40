"""Record a measured space for test_search.py: `python -m tests.autotune.record_search NAME SIZE`, on a GPU.

Tunes every configuration of a GEMM of SIZE x SIZE x SIZE and writes recordings/search_NAME.json: the space, each
configuration's milliseconds (null: it does not work) and what the model said, both in the space's order.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import tiledsl
from tests.autotune import kernels
from tiledsl.autotuner.predicting.rank import rank
from tiledsl.runtime.target import Target

SPACE = {
    "block_M": [64, 128, 256], "block_N": [64, 128, 256], "block_K": [32, 64, 128], "num_stages": [2, 3, 4, 5],
    "threads": [128, 256],
}  # fmt: skip


def record(size: int) -> dict[str, Any]:
    """The recording as JSON values."""
    configs = [dict(zip(SPACE, values)) for values in itertools.product(*SPACE.values())]
    jit = tiledsl.jit(out_idx=-1)(kernels.gemm.function)
    shape = dict.fromkeys("MNK", size)
    ranking = rank(lambda config: jit.program_for(shape, config), configs, Target.parse("auto"), prunes=False)
    options: dict[str, Any] = {"search": "exhaustive", "prune": False, "ref_prog": lambda A, B: A @ B, "cache": False}
    result = tiledsl.autotune(configs=configs, **options)(jit)(**shape)
    return {
        "space": SPACE,
        "latency": [trial.latency if trial.ok else None for trial in result.trials],
        "predicted": [ranking.predicted.get(index) for index in range(len(configs))],
    }


def main(name: str, size: str) -> None:
    path = Path(__file__).with_name("recordings") / f"search_{name}.json"
    path.write_text(json.dumps(record(int(size))) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
