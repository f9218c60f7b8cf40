"""Kernels under triton.autotune: while a function is tuned in context, their calls in its thread go to its session.

Triton asks nobody how to tune, so its Autotuner.run is replaced, for as long as such a function runs anywhere in the
process. Calls of other threads go through unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.context.session import ContextSession
from tiledsl.autotuner.context.tuning import Offer, Turn
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, tuning_key
from tiledsl.autotuner.trial import Trial
from tiledsl.runtime.target import Target
from tiledsl.settings import current

Run = Callable[..., Any]
_lock = threading.Lock()
_users = 0
_original: Run | None = None


@contextmanager
def intercepted() -> Iterator[None]:
    """Inside, calls of kernels under triton.autotune go to this thread's session, if it has one."""
    global _users, _original
    from triton.runtime.autotuner import Autotuner

    with _lock:
        if _users == 0 and (_original is None or Autotuner.run is _original):
            _original, Autotuner.run = Autotuner.run, _run
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and Autotuner.run is _run:  # else someone has replaced it since, and may call this one
                Autotuner.run, _original = _original, None


def _run(self: Any, *arguments: Any, **keywords: Any) -> Any:
    session, original = active.get(), _original
    if original is None:  # the last function has just ended in another thread
        return self.run(*arguments, **keywords)
    if session is None or len(self.configs) < 2 or keywords.get("warmup"):
        return original(self, *arguments, **keywords)
    return _call(session, original, self, arguments, keywords)


def _call(
    session: ContextSession, original: Run, tuner: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    named = dict(zip(tuner.arg_names, arguments))
    bound = {name: value for name, value in {**named, **keywords}.items() if name in tuner.arg_names}
    values = {name: bound[name] for name in tuner.keys if name in bound}
    dtypes = [str(value.dtype) for value in bound.values() if hasattr(value, "dtype")]
    key = (*values.values(), *dtypes)  # as Triton has it
    identity = (id(tuner), key)
    known = key in tuner.cache and not current().always_tune
    if known and not session.has(identity):
        return original(tuner, *arguments, **keywords)

    def launch(config: Mapping[str, Any], turn: Turn) -> Any:
        chosen = config["config"]
        options = {**keywords, **chosen.all_kwargs()}
        everything = {**named, **options}
        if chosen.pre_hook is not None:
            chosen.pre_hook(everything)
        if not turn.is_try:
            if turn.is_first:  # as after a tuning of Triton's own
                tuner.pre_hook(everything, reset_only=True)
            tuner.best_config = chosen
            return tuner.fn.run(*arguments, **options)
        tuner.pre_hook(everything)
        try:
            returned = turn.time(lambda: tuner.fn.run(*arguments, **options))
        except Exception as error:
            tuner.post_hook(everything, exception=error)
            raise
        tuner.post_hook(everything, exception=None)
        return returned

    def trials() -> list[Trial]:
        tuner.nargs = named
        try:
            return [Trial(index, {"config": config}) for index, config in enumerate(tuner.prune_configs(keywords))]
        finally:
            tuner.nargs = None

    def disk_key() -> Key | None:
        target = Target.parse("auto" if on_gpu else "interpret")
        what = {**values, "(dtypes)": dtypes, "(hooks)": [tuner.reset_to_zero, tuner.restore_value]}
        return tuning_key(tuner.base_fn.__name__, tuner.base_fn, what, [], target, on_gpu)

    def remember(trials: Sequence[Trial], best: Trial) -> None:
        tuner.cache[key] = best.config["config"]

    on_gpu = any(getattr(value, "is_cuda", False) for value in bound.values())
    text = canonical([values, dtypes])
    offer = Offer(tuner.base_fn.__name__, text, on_gpu, launch, trials, disk_key, remember)
    return session.call(identity, offer)
