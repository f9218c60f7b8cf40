"""How long a new process takes to recall a tuned kernel and to call it: `python -m tests.gpu.time_recall product`.

With "tune" before the name it tunes. It prints as JSON the milliseconds of importing tiledsl with the tuner, of finding
the result on disk, of the first call, and of all three, after torch and triton were imported and a CUDA context and the
inputs made; which programs were started meanwhile; and how many of tiledsl's modules have no byte code on disk, as
where PYTHONDONTWRITEBYTECODE is set: to compile those again takes longer than all the rest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import triton
import triton.experimental.gluon
import triton.tools.tensor_descriptor

TOLERANCE = 1e-2


def main(name: str, tunes: bool) -> dict[str, Any]:
    """What was measured, and whether the result is right."""
    torch.manual_seed(0)
    tensor = lambda *sizes, dtype: torch.randn(*sizes, dtype=dtype, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    import tiledsl.language  # noqa: F401
    from tiledsl import autotune, jit  # noqa: F401

    imported = time.perf_counter() - begin
    from tests.autotune.recalled import FUNCTIONS, arguments, not_needed
    from tiledsl.autotuner import set_autotune_inputs

    function, keywords = FUNCTIONS[name]
    given = arguments(name, tensor)
    torch.cuda.synchronize()
    programs = _watch_programs()
    start = time.perf_counter()
    with set_autotune_inputs(*given):
        result = function.compile(**keywords)
    loaded = time.perf_counter() - start
    answer = result(*given)
    torch.cuda.synchronize()
    called = time.perf_counter() - start - loaded
    started = list(programs)  # before the comparison
    answer = answer[0] if isinstance(answer, (list, tuple)) else answer
    error = (answer.float() - _reference(name, given)).abs().max().item()
    return {
        "from_cache": result.from_cache,
        "import_ms": imported * 1e3,
        "load_ms": loaded * 1e3,
        "call_ms": called * 1e3,
        "total_ms": (imported + loaded + called) * 1e3,
        "programs": started,
        "right": error <= TOLERANCE * _reference(name, given).abs().max().item(),
        "modules": [] if tunes else not_needed(sys.modules),
        "without_byte_code": _without_byte_code(),
        "triton": triton.__version__,
    }


def _without_byte_code() -> int:
    specs = [each.__spec__ for name, each in list(sys.modules.items()) if name.partition(".")[0] == "tiledsl"]
    return sum(spec is not None and not (spec.cached and os.path.exists(spec.cached)) for spec in specs)


def _watch_programs() -> list[str]:
    """The programs that this process starts from now on."""
    started: list[str] = []
    sys.addaudithook(lambda event, values: started.append(str(values[0])) if event == "subprocess.Popen" else None)
    return started


def _reference(name: str, given: Any) -> torch.Tensor:
    if name in ("scaled", "dynamic"):
        return given[0] * given[1] + given[2]
    if name == "eager":
        return given[0] * 2.0
    if name == "attention":
        return torch.nn.functional.scaled_dot_product_attention(*(each.float() for each in given))
    return given[0].float() @ given[1].float()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[-1], sys.argv[1] == "tune")))
