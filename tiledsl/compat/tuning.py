"""`tilelang.autotuner`: tiledsl's, with TileLang's options for how it compiles and on which GPUs accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tiledsl import autotuner
from tiledsl.autotuner import AutotuneResult, set_autotune_inputs
from tiledsl.compat.cpu_device import here
from tiledsl.logs import note_once

__all__ = ["AutoTuner", "AutotuneResult", "autotune", "set_autotune_inputs"]

# How TileLang compiles and times configurations. Here that is always done in processes, compiling while measuring.
_WITHOUT_EFFECT = frozenset({
    "backend", "benchmark_devices", "benchmark_multi_gpu", "enable_grouped_compile", "group_compile_size",
    "use_pipeline",
})  # fmt: skip


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in _WITHOUT_EFFECT & options.keys():
        note_once(f"the autotuner's option {name} has no effect here")
    return {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}


def autotune(*misplaced: Any, **options: Any) -> Callable[[Any], Any]:
    """`@tilelang.autotune(configs=...)`; see tiledsl.autotune."""
    return autotuner.autotune(*misplaced, **_known(options))


class AutoTuner(autotuner.AutoTuner):
    """tiledsl's AutoTuner, with TileLang's options."""

    def set_compile_args(self, *arguments: Any, **options: Any) -> AutoTuner:
        super().set_compile_args(*arguments, **options)
        self.compile_args["target"] = here(self.compile_args["target"])
        return self

    def set_profile_args(self, **options: Any) -> AutoTuner:
        super().set_profile_args(**_known(options))
        return self

    def run(self, *arguments: Any, **options: Any) -> AutotuneResult:
        return super().run(*arguments, **_known(options))
