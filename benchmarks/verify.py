"""Certificates of the kernels of examples/ and of the suite's rows, at their real shapes, without a GPU.

    python -m benchmarks.verify [--target cuda:90] [--every] [TEXT ...]      (make verify-examples)

Prints a line for each kernel: how many checks are proved, tested, unknown and failed, the seconds, and those of the
processor, which do not count what else runs on the machine. --every: all configurations of a row, not only the first.
TEXT: parts of names. Status 1 if a check failed, or if a kernel took more than 5 s of the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import tiledsl
from benchmarks import ours
from benchmarks.programs import example
from benchmarks.row import Context, Row
from benchmarks.rows import all_rows, backward
from tiledsl.kernels.kernel import Kernel

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MOST_SECONDS = 5.0


def example_names() -> list[str]:
    """Every example but those that tune or train; the kernels of `collectives` and `small_model` are of kinds that are
    among the others."""
    others = ("collectives", "quickstart", "small_model")
    return [path.stem for path in sorted(EXAMPLES.glob("[a-z]*.py")) if path.stem not in others]


def of_example(name: str, target: str = "cuda:90") -> list[Kernel]:
    """The kernels that an example runs, each once, lowered for a target; none runs."""
    found: dict[str, Kernel] = {}

    def called(self: Kernel, *arguments: Any, **keywords: Any) -> Any:
        found.setdefault(self.source, self)
        return outputs(self, [*arguments, *keywords.values()])

    module = example(name)
    with ExitStack() as stack:
        stack.enter_context(tiledsl.settings(target=target))
        stack.enter_context(patch.object(Kernel, "__call__", called))
        left_out = {"largest_error": lambda *_, **__: 0.0, "print_speed": _nothing}
        stack.enter_context(patch.multiple(module, **{each: left_out[each] for each in left_out.keys() & vars(module)}))
        for each in (module, sys.modules.get("attention")):
            if hasattr(each, "DEVICE"):
                stack.enter_context(patch.object(each, "DEVICE", "meta"))
        stack.enter_context(suppress(RuntimeError))  # of comparing results that there are none of
        module.main()
    if not found:
        raise RuntimeError(f"{name} runs no kernel")
    return list(found.values())


def _nothing(*_: Any, **__: Any) -> None:
    pass


def outputs(kernel: Kernel, given: Sequence[Any], device: str = "meta") -> Any:
    """Tensors in the shapes of a kernel's outputs, by default without memory; None if they are among its arguments."""
    if len(given) == len(kernel.params):
        return None
    sizes: dict[str, int] = {}
    for param, tensor in zip((p for p in kernel.params if not p.is_output), given):
        sizes |= {dim: size for dim, size in zip(param.shape, getattr(tensor, "shape", ())) if isinstance(dim, str)}
    made = [
        torch.zeros([sizes[d] if isinstance(d, str) else d for d in p.shape], dtype=_dtype(p.dtype), device=device)
        for p in kernel.params
        if p.is_output
    ]
    return made[0] if len(made) == 1 else made


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def of_row(row: Row, target: str = "cuda:90", every: bool = False) -> Iterator[Kernel]:
    """The suite's kernels for a row: of the first configuration, or of `every` one."""
    (candidate,) = [each for each in row.candidates if each.kind == "tiledsl"]
    asked: list[Any] = []

    def tune(_: Context, jit: Any, arguments: Any, configs: Any, inputs: Any, *_how: Any) -> ours.Tuned:
        function = tiledsl.jit(**{**jit.options, "target": target})(jit.function)
        values = () if arguments or not jit.is_eager else tuple(inputs)
        for config in configs if every else configs[:1]:
            if jit.is_eager:
                asked.append(function.compile(*values, **config))
            else:
                asked.append(function.kernel_for(arguments, dict(config)))
        return ours.Tuned(asked[-1], dict(configs[0]))

    with patch.object(ours, "tune", tune), patch.object(backward, "tune", tune):
        candidate.prepare(Context(device="cpu", tune=False), row, row.inputs("meta"))
    yield from asked


def every_kernel(target: str, wanted: Sequence[str], every: bool = False) -> Iterator[tuple[str, Kernel]]:
    """Names and kernels, examples first, of those whose name has one of the texts."""
    for name in example_names():
        if not wanted or any(text in name for text in wanted):
            for kernel in of_example(name, target):
                yield name, kernel
    for row in all_rows():
        if not wanted or any(text in row.name for text in wanted):
            for kernel in of_row(row, target, every):
                yield row.name, kernel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("wanted", nargs="*", metavar="TEXT")
    given = parser.parse_args()
    print(f"{'proved':>6} {'tested':>6} {'unknown':>7} {'failed':>6} {'seconds':>7} {'cpu':>5}  kernel")
    wrong = 0
    totals = dict.fromkeys(("proved", "tested", "unknown", "failed"), 0)
    count, slowest = 0, 0.0
    for name, kernel in every_kernel(given.target, given.wanted, given.every):
        begun = time.process_time()
        made = kernel.verify()
        busy = time.process_time() - begun
        numbers = {status: len(made.of(status)) for status in totals}  # type: ignore[arg-type]
        totals = {status: totals[status] + number for status, number in numbers.items()}
        count, slowest = count + 1, max(slowest, busy)
        wrong += not made.ok or busy > MOST_SECONDS
        proved, tested, unknown, failed = numbers.values()
        shown = f"{name}: {kernel.name}" if kernel.name not in name else name
        print(f"{proved:6} {tested:6} {unknown:7} {failed:6} {made.seconds:7.2f} {busy:5.2f}  {shown}", flush=True)
        for each in (*made.of("unknown"), *made.failed):
            print(f"{'':43}{each.status}: {each.place} {each.subject}: {each.detail}")
    print(", ".join(f"{number} {status}" for status, number in totals.items()))
    print(f"{count} kernels, the slowest {slowest:.2f} s of the processor")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
