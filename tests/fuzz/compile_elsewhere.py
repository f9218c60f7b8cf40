"""Compiles emitted source to machine code by the Triton of this interpreter, which may have neither torch nor tiledsl.

One line of JSON in, with source, kernels and target; one line out: what went wrong, or nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.compile_emitted import begin, gpu, sources, stages


def compiled(job: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "emitted.py")
        path.write_text(job["source"])
        for source, options in sources(path, job["kernels"]):
            for _ in stages(source, gpu(job["target"]), options):
                pass


def main() -> None:
    begin()
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
