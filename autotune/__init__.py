"""The autotuner. Imported as `tiledsl.autotuner`.

decorator.py starts a tuning, engine.py takes it from configurations to a result, and run.py compiles, checks and times.
There is a folder for each kind of work: predicting, compiling, verifying, measuring, search, storage, results; tuned,
for the files that are made offline and looked up at run time; external, for those of other projects; group, for
processes that tune together; and context, for kernels that are tuned inside a function that runs again and again.
"""

if __name__ != "tiledsl.autotuner":
    raise ImportError(f"{__name__!r} is not a package of its own: write `import tiledsl.autotuner`", name=__name__)

from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.split_k import SplitK, split_k

if TYPE_CHECKING:
    from tiledsl.autotuner.context.decorator import tune_in_context
    from tiledsl.autotuner.decorator import AutotunedFunction, AutoTuner, autotune
    from tiledsl.autotuner.external.folder import ExternalConfigs, read_external
    from tiledsl.autotuner.functions import FunctionResult, TunedFunction, tune_function
    from tiledsl.autotuner.measuring.inputs import set_autotune_inputs
    from tiledsl.autotuner.options import TuneOptions
    from tiledsl.autotuner.results.result import AutotuneResult
    from tiledsl.autotuner.trial import Trial
    from tiledsl.autotuner.tuned.lookup import TunedMatch
    from tiledsl.autotuner.tuned.report import TuneReport

_LAZY = {
    "AutoTuner": "decorator",
    "AutotunedFunction": "decorator",
    "autotune": "decorator",
    "FunctionResult": "functions",
    "TunedFunction": "functions",
    "tune_function": "functions",
    "tune_in_context": "context.decorator",
    "ExternalConfigs": "external.folder",
    "read_external": "external.folder",
    "set_autotune_inputs": "measuring.inputs",
    "TuneOptions": "options",
    "AutotuneResult": "results.result",
    "SearchSpace": "search.own",
    "register_search": "search",
    "Simulation": "search.simulated",
    "simulate": "search.simulated",
    "Trial": "trial",
    "TunedMatch": "tuned.lookup",
    "TuneReport": "tuned.report",
}

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "AutotunedFunction",
    "ExternalConfigs",
    "FunctionResult",
    "SearchSpace",
    "Simulation",
    "SplitK",
    "Trial",
    "TuneOptions",
    "TuneReport",
    "TunedFunction",
    "TunedMatch",
    "autotune",
    "read_external",
    "register_search",
    "set_autotune_inputs",
    "simulate",
    "split_k",
    "tune_function",
    "tune_in_context",
]


def __getattr__(name: str) -> Any:
    # Loaded when first used: the processes that compile and measure go without most of it.
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
