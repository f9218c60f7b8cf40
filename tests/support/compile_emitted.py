"""Emitted kernels compiled by the Triton of any interpreter, which may have neither torch nor tiledsl.

`described` says what such an interpreter has to know of a kernel, as JSON; the rest runs there.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.load_file import load_file

ROOT = Path(__file__).resolve().parents[2]


def described(kernel: Any) -> dict[str, Any]:
    """An EmittedKernel as JSON."""
    return {
        "name": kernel.name,
        "signature": kernel.signature,
        "constexprs": kernel.constexprs,
        "attrs": [[list(place), facts] for place, facts in kernel.attrs.items()],
        "options": {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **kernel.options},
    }


def environment() -> dict[str, str]:
    """The variables of an interpreter that compiles: it finds this module, and none of this interpreter's packages."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}


def begin() -> None:
    """Import Triton without what takes seconds: torch, which only launching needs, and a digest of all of Triton."""
    sys.modules["torch"] = types.ModuleType("torch")
    import triton.runtime.cache

    triton.runtime.cache.triton_key = lambda: triton.__version__


def gpu(target: str) -> Any:
    """Triton's target of a text such as cuda:90 or hip:gfx942."""
    from triton.backends.compiler import GPUTarget

    kind, _, arch = target.partition(":")
    return GPUTarget(kind, int(arch) if arch.isdigit() else arch, 64 if arch.startswith("gfx9") else 32)


def sources(path: str | Path, kernels: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """What Triton compiles of each of a module's kernels, and its options."""
    from triton.compiler import ASTSource

    module = load_file(Path(path), f"emitted {Path(path).stem}")
    for kernel in kernels:
        function, kind = getattr(module, kernel["name"]), ASTSource
        if type(function).__name__ == "GluonJITFunction":
            from triton.experimental.gluon._runtime import GluonASTSource as kind
        attrs = {tuple(place): facts for place, facts in kernel["attrs"]}
        yield kind(function, kernel["signature"], kernel["constexprs"], attrs), kernel["options"]


def stages(source: Any, target: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Compile stage by stage: the name of each, what it makes, and what Triton knows of the kernel then."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    chosen = backend.parse_options(dict(options))
    known = backend.get_codegen_implementation(chosen), backend.get_module_map()
    made = source.make_ir(target, chosen, *known, context)
    facts: dict[str, Any] = {"target": target, **chosen.__dict__}
    steps: dict[str, Any] = {}
    backend.add_stages(steps, chosen, source.language)
    for name, step in steps.items():
        made = step(made, facts)
        yield name, made, facts
