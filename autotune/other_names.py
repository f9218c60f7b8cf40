"""TileLang's names for what the tuner does otherwise: its options, and the folders that it keeps results in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.logs import note_once

RESULT_FILE = "result.json"  # in a folder of AutotuneResult.save_to_disk

# How TileLang compiles configurations. Here that is always done in processes, compiling while measuring.
_WITHOUT_EFFECT = ("enable_grouped_compile", "group_compile_size", "use_pipeline")


def from_tilelang(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by tiledsl's names: benchmark_devices are `devices`; those without effect are noted in the log."""
    ours = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
    for name in sorted(options.keys() - ours.keys()):
        note_once(f"the autotuner's option {name} has no effect here")
    devices, several = ours.pop("benchmark_devices", None), ours.pop("benchmark_multi_gpu", False)
    if devices and several:
        ours["devices"] = list(devices)
    if ours.get("backend") == "cupti":
        note_once("the autotuner's backend 'cupti' is not here: calls are timed as backend=None does")
        del ours["backend"]
    return ours


@dataclass
class CompileArgs:
    """How TileLang's tuner compiles: `target` is what AutotuneResult.load_from_disk takes from it."""

    out_idx: Any = None
    execution_backend: str = "auto"
    target: Any = None
    target_host: Any = None
    verbose: bool = False
    pass_configs: Mapping[str, Any] | None = None
