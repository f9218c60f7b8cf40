"""The process in which certificate.process has a kernel verified: it lowers the program again."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from tiledsl.certificate.certify import checks_of
from tiledsl.certificate.check import Check
from tiledsl.certificate.process import END, unpacked
from tiledsl.dialects.tile import FuncOp
from tiledsl.digests import source_digest
from tiledsl.ir.pass_manager import parse_program
from tiledsl.kernels.kernel import Kernel
from tiledsl.passes.user_passes import register
from tiledsl.runtime.target import Target


def main() -> None:
    """What the process does: read a task, write checks."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed on the way is no answer
    task: dict[str, Any] = json.load(sys.stdin)
    register(unpacked(task["passes"]))
    text, target = task["text"], Target.parse(task["target"])

    def build() -> FuncOp:
        root = parse_program(text, target).root
        assert isinstance(root, FuncOp)
        return root

    kernel = Kernel(build, target, task["pass_configs"], resumed_after=task["resumed_after"])
    checks = checks_of(kernel)
    if source_digest(kernel.source) != source_digest(task["source"]):
        reason = "lowered in another process, the program has another source"
        checks = iter([Check("source", kernel.name, "unknown", reason)])
    for each in checks:
        out.write(json.dumps(asdict(each)) + "\n")
        out.flush()
    out.write(json.dumps(END) + "\n")
    out.close()


if __name__ == "__main__":
    main()
