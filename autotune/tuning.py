"""Where the tuning of a kernel begins: with the ranks of a group, from disk, or here."""

from __future__ import annotations

from pathlib import Path

from tiledsl.autotuner.engine import TuningProblem, limits_of, recall, tune_here
from tiledsl.autotuner.group.ranks import Alone, process_group, session
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.storage.store import Store
from tiledsl.settings import current


def tune(problem: TuningProblem) -> AutotuneResult:
    """The best configuration's kernel, from disk if it is known there. TileError if none works.

    Ctrl-C ends a run: its result is the best so far, with a warning. It is not stored as the result, but the trials
    that had ended are. KeyboardInterrupt if none had.
    """
    settings = current()
    options = problem.options
    group = process_group(options.group, problem.values)
    if group is not None:
        from tiledsl.autotuner.group.kernels import tune_together  # loads what measures

        with session(group, options.group_timeout, f"tuning {problem.name}") as ranks:
            return tune_together(problem, ranks)
    key = problem.key()
    if key is None:
        return tune_here(problem, None, {}, Alone())
    limits = limits_of(options)
    store = Store.open(Path(options.store or settings.cache_dir), key, limits)
    known = None if settings.always_tune else recall(problem, store)
    if known is not None:
        return known
    with store.lock():
        known = None if settings.always_tune else recall(problem, store)  # another process may just have tuned it
        return known or tune_here(problem, store, {} if settings.always_tune else store.finished(), Alone())
