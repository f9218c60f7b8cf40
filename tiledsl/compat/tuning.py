"""`tilelang.autotuner`: tiledsl's, with TileLang's options for how it compiles and on which GPUs accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl import autotuner
from tiledsl.autotuner import AutotuneResult, set_autotune_inputs
from tiledsl.autotuner.other_names import CompileArgs as _CompileArgs
from tiledsl.autotuner.other_names import from_tilelang
from tiledsl.compat.cpu_device import here
from tiledsl.compat.environment import default_target, env

__all__ = ["AutoTuner", "AutotuneResult", "CompileArgs", "autotune", "set_autotune_inputs"]


class CompileArgs(_CompileArgs):
    """For AutotuneResult.load_from_disk, with the script's target translated for this machine."""

    def __post_init__(self) -> None:
        self.target = here(self.target)


def autotune(*misplaced: Any, **options: Any) -> Callable[[Any], Any]:
    """`@tilelang.autotune(configs=...)`; see tiledsl.autotune."""
    env.apply()
    return autotuner.autotune(*misplaced, **from_tilelang(options))


class AutoTuner(autotuner.AutoTuner):
    """tiledsl's AutoTuner, with TileLang's options."""

    def set_compile_args(self, *arguments: Any, **options: Any) -> AutoTuner:
        super().set_compile_args(*arguments, **options)
        self.compile_args["target"] = here(self.compile_args["target"] or default_target())
        return self

    def run(self, *arguments: Any, **options: Any) -> AutotuneResult:
        env.apply()
        return super().run(*arguments, **options)
