"""examples/collectives.py on two ranks, over gloo: every rank compares each of the five with torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.example_modules import EXAMPLES

TITLES = (
    "all-gather, product", "product, reduce-scatter", "product, all-reduce", "all-gather, experts",
    "experts, reduce-scatter",
)  # fmt: skip


def lines_of(*arguments: str, **variables: str) -> list[str]:
    """What two ranks print of each, without what won."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [*command, "collectives.py", *arguments], cwd=EXAMPLES, env=environment, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.partition(";")[0] for line in done.stdout.splitlines() if "matches torch" in line]


EXPECTED = [f"{title} on 2 ranks: matches torch" for title in TITLES]


@pytest.mark.slow
def test_two_ranks_match_torch() -> None:
    assert lines_of(CUDA_VISIBLE_DEVICES="") == EXPECTED
