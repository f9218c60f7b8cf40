"""Modules that what is called at start-up loads none of."""

from __future__ import annotations

# What neither importing tiledsl with the tuner nor recalling and calling a tuned kernel needs, with all below it.
NOT_NEEDED = (
    "rich", "joblib", "networkx", "filelock", "platformdirs", "lark", "tiledsl.ir.core", "tiledsl.ir.printer",
    "tiledsl.ir.pass_manager", "tiledsl.dialects", "tiledsl.analysis", "tiledsl.frontend", "tiledsl.passes",
    "tiledsl.language.names", "tiledsl.language.program", "tiledsl.codegen.triton_source", "tiledsl.runtime.lowering",
    "tiledsl.autotuner.run", "tiledsl.autotuner.search", "tiledsl.autotuner.progress", "tiledsl.autotuner.compiling",
    "tiledsl.autotuner.predicting", "tiledsl.autotuner.verifying", "tiledsl.autotuner.measuring.measure",
    "tiledsl.autotuner.measuring.bench",
)  # fmt: skip
