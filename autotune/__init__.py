"""The autotuner: search space, compile pool, benchmark worker, measurement, cache. Imported as `tiledsl.autotuner`."""

if __name__ != "tiledsl.autotuner":
    raise ImportError(f"{__name__!r} is not a package of its own: write `import tiledsl.autotuner`", name=__name__)

from tiledsl.autotuner.decorator import AutotunedFunction, AutoTuner, autotune
from tiledsl.autotuner.inputs import set_autotune_inputs
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.result import AutotuneResult
from tiledsl.autotuner.trial import Trial

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "AutotunedFunction",
    "Trial",
    "TuneOptions",
    "autotune",
    "set_autotune_inputs",
]
