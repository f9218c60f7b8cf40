"""A kernel tuned by the ranks of a group: each compiles and measures for itself, and they agree after each step.

A single kernel waits for no other rank, so ranks need not time a configuration at the same moment; what each finds is
brought together before the search goes on, before the final round and after it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tiledsl.autotuner.engine import TuningProblem, limits_of, recall, result_of, tune_here
from tiledsl.autotuner.group.agree import agree_on_problem
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.measuring.measure import can_measure
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.store import Store
from tiledsl.settings import current


def tune_together(problem: TuningProblem, ranks: Ranks) -> AutotuneResult:
    """As engine.tune, on all ranks: a result on disk counts if all have one, and then that of rank 0."""
    settings, key = current(), problem.key()
    root = Path(problem.options.store or settings.cache_dir)
    fields = {"arguments": {n: canonical(v) for n, v in problem.values.items()}} if key is None else key.fields
    agreed = agree_on_problem(
        ranks, problem.name, problem.configs, key, fields, limits_of(problem.options), root, settings.always_tune
    )
    problem = _with_own_share(problem, agreed.neighbours)
    if agreed.key is None:
        return tune_here(problem, None, {}, ranks)
    store = Store.open(root, agreed.key, agreed.limits)
    store.writing = agreed.writes
    known = None if agreed.always_tune else recall(problem, store)
    own = None if known is None else problem.configs.index(known.config)
    places = ranks.exchange("what is remembered", own)
    if known is not None and all(place is not None for place in places):
        chosen = known.trials[places[0]]
        if all(ranks.exchange("whether it works", chosen.ok)):
            if own == places[0]:
                return known
            outcome = CachedResult(list(known.trials), known.latency_kind, known.ref_latency, chosen.index)
            return replace(result_of(problem, outcome), from_cache="disk")
    done = store.finished() if ranks.rank == 0 and not agreed.always_tune else {}
    return tune_here(problem, store, ranks.exchange("trials of earlier runs", done)[0], ranks)


def _with_own_share(problem: TuningProblem, neighbours: int) -> TuningProblem:
    """The problem for a rank that shares its machine: it measures on its own GPU, and compiles in fewer processes."""
    options = problem.options
    jobs = max(1, current(jobs=options.jobs).workers // neighbours)
    devices = options.devices
    if devices is None and can_measure(problem.target):
        import torch

        devices = (torch.cuda.current_device(),)
    return replace(problem, options=replace(options, jobs=jobs, devices=devices))
