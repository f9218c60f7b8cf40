"""How many mistakes in passes translation validation notices: `python -m tests.certificate.pass_mutants COUNT [SEED]`.

Mutants of passes/ are drawn until COUNT of them have changed the text of a kernel of examples/, or made its lowering
fail. Each is one of: caught; unchecked, where something is unknown; survived, which must mean the same: these are
printed with what they changed.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.machinery
import io
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (loaded once, before the forks)

from tests.mutants import mutations  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180  # for one mutant
# The kernels: an example, its options beside the small sizes, the target.
GLUON = {"dim": 64, "queries": 256, "keys": 256, "block_M": 128, "block_N": 64, "causal": 1}
MORE = [("attention", GLUON, "cuda:90"), ("gemm_lazy", {"M": 300, "N": 256, "K": 256}, "cuda:90")]
Source = tuple[str, str]


def cases() -> list[tuple[str, dict[str, Any], str]]:
    from tests.support.example_kernels import NAMES

    return [*((name, {}, "cuda:90") for name in NAMES), *MORE]


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns, as JSON has it, in a process that has loaded nothing of tiledsl."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                made = function()
        except BaseException as error:
            made = {"caught": f"{type(error).__name__}: {error}"[:200]}
        with os.fdopen(write, "w") as file:
            json.dump(made, file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"caught": "the process ended"}


def sources() -> list[list[Source]]:
    from tests.support.example_kernels import kernels_of

    return [[(kernel.name, kernel.source) for kernel in kernels_of(name, target, **o)] for name, o, target in cases()]


def _replace_source(path: Path, text: bytes) -> None:
    """Let imports read another text for one file."""
    read = importlib.machinery.SourceFileLoader.get_data

    def get_data(loader: Any, asked: str) -> bytes:
        if os.path.realpath(asked) == str(path):
            return text
        if asked.endswith(".pyc") and Path(asked).name.startswith(path.stem + "."):
            raise OSError("it is not the file's")
        return read(loader, asked)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]


def outcome(path: Path, text: bytes, before: list[list[list[str]]]) -> dict[str, str]:
    """What becomes of a mutant: {"same": ""}, or caught, unchecked or survived with a sentence."""
    _replace_source(path, text)
    from tests.support.example_kernels import kernels_of

    changed = []
    for (name, options, target), was in zip(cases(), before, strict=True):
        try:
            made = kernels_of(name, target, **options)
        except Exception as error:
            return {"caught": f"{name}: lowering: {error}"[:200]}
        changed += [
            (kernel, old) for kernel, old in zip(made, was, strict=False) if [kernel.name, kernel.source] != old
        ]
    if not changed:
        return {"same": ""}
    from tiledsl.certificate.translation import check_translation

    for kernel, _ in sorted(changed, key=lambda each: len(each[0].source)):
        bad = [each for each in check_translation(kernel) if each.status != "tested"]
        if bad:
            kind = "caught" if any(each.status == "failed" for each in bad) else "unchecked"
            return {kind: f"{kernel.name}: {bad[0].subject}: {bad[0].detail}"[:200]}
    kernel, (_, old) = changed[0]
    lines = difflib.unified_diff(old.splitlines(), kernel.source.splitlines(), lineterm="", n=0)
    return {"survived": f"{kernel.name}\n" + "\n".join(list(lines)[2:40])}


def main(count: int, seed: int) -> None:
    files = sorted(path for path in (ROOT / "passes").rglob("*.py"))
    texts = {path: path.read_bytes() for path in files}
    drawn = [(path, mutant) for path in files for mutant in mutations.mutants_of(path.name, texts[path])]
    random.Random(seed).shuffle(drawn)
    before = in_a_fork(sources)
    assert isinstance(before, list), before
    counts: Counter[str] = Counter()
    for path, mutant in drawn:
        if counts.total() - counts["same"] >= count:
            break
        if not mutations.compiles(mutant, texts[path]):
            continue
        made = in_a_fork(lambda path=path, mutant=mutant: outcome(path, mutant.apply(texts[path]), before))
        ((kind, detail),) = made.items()
        counts[kind] += 1
        if kind not in ("same", "caught"):
            print(
                f"{kind}: {path.relative_to(ROOT)} {mutant.function}\n  {mutant.before}\n  {mutant.after}\n  {detail}",
                flush=True,
            )
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
