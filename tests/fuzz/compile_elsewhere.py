"""Compiles emitted source to machine code by the Triton of this interpreter, which may have neither torch nor tiledsl.

One line of JSON in, with source, kernels and target; one line out: what went wrong, or nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import types
from typing import Any


def compiled(job: dict[str, Any]) -> None:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    kind, _, arch = job["target"].partition(":")
    target = GPUTarget(kind, int(arch) if arch.isdigit() else arch, 64 if arch.startswith("gfx9") else 32)
    backend = make_backend(target)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "emitted.py")
        with open(path, "w") as file:
            file.write(job["source"])
        spec = importlib.util.spec_from_file_location("emitted", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for each in job["kernels"]:
            function = getattr(module, each["name"])
            source_kind: Any = ASTSource
            if type(function).__name__ == "GluonJITFunction":
                from triton.experimental.gluon._runtime import GluonASTSource

                source_kind = GluonASTSource
            facts = {tuple(place): fact for place, fact in each["attrs"]}
            source = source_kind(function, each["signature"], each["constexprs"], facts)
            context, stages = ir.context(), {}
            ir.load_dialects(context)
            backend.load_dialects(context)
            options = backend.parse_options(each["options"])
            known = backend.get_codegen_implementation(options), backend.get_module_map()
            made = source.make_ir(target, options, *known, context)
            metadata = {"target": target, **options.__dict__}
            backend.add_stages(stages, options, source.language)
            for stage in stages.values():
                made = stage(made, metadata)


def main() -> None:
    sys.modules["torch"] = types.ModuleType("torch")
    import triton
    import triton.runtime.cache

    triton.runtime.cache.triton_key = lambda: triton.__version__
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        told = ""
        try:
            compiled(json.loads(line))
        except Exception as error:
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            lines = [each for each in str(root).strip().splitlines() if each.strip()]
            told = f"{type(root).__name__}: {(lines or [''])[-1].strip()}"[:400]
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
