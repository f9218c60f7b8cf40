"""Programs that cover what passes decide, and a digest of their text after each pass."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiledsl
from tests.support.example_modules import BASIC, load_example
from tests.support.programs import NAMED
from tests.support.random_sources import random_source
from tiledsl.dialects.tile import FuncOp
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.target import Target

FILE = Path(__file__).with_name("stages.txt")
EXAMPLES = (*BASIC, "attention", "attention_backward", "attention_fp8", "attention_sink")
RANDOM = 40
# Options that lead through code of passes that the defaults do not reach.
VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("cuda:90", {}),
    ("cuda:80", {"map-grid.group_m": 4, "unroll-loops.limit": 8, "peel-loops.mode": "all"}),
    ("cuda:100", {"select-access.mode": "tma", "map-grid.persistent": 1}),
    ("hip:gfx942", {"select-access.mode": "pointer", "cse.loads": False, "lower-to-triton.index_bits": 64}),
    ("cuda:90", {"split-k.splits": 3, "select-access.mode": "pointer"}),
    ("cuda:90", {"split-k.streams": 7}),
)


@dataclass(frozen=True)
class Golden:
    """One program for one target with some options."""

    name: str
    build: Callable[[], FuncOp]
    target: str
    options: Mapping[str, Any]

    def lowered(self) -> Kernel | str:
        """The kernel, or why there is none."""
        try:
            return Kernel(self.build, Target.parse(self.target), self.options)
        except tiledsl.TileError as error:
            return f"refused={digest(error.message)}"

    @property
    def end(self) -> str:
        """The last word of the line, which costs a fraction of it: the digest of the source, or of the refusal."""
        kernel = self.lowered()
        return kernel if isinstance(kernel, str) else f"emit={digest(plain(kernel.source))}"

    def stages(self) -> dict[str, str]:
        """The digest after each pass that changes the text, by its name, and a number where it runs again."""
        found: dict[str, str] = {}
        last = ""
        kernel = self.lowered()
        if isinstance(kernel, str):
            return dict([kernel.split("=")])
        for stage in kernel.stages:
            text = plain(stage.text or "")
            if text != last:
                again = sum(name.split("#")[0] == stage.name for name in found)
                found[f"{stage.name}#{again}" if again else stage.name] = digest(text)
            last = text
        return found

    @property
    def line(self) -> str:
        return f"{self.name}: " + " ".join(f"{name}={value}" for name, value in self.stages().items())


def plain(text: str) -> str:
    """Without the places in files of users' programs."""
    text = re.sub(r' loc\("(?:[^"\\]|\\.)*"(?: \d+)*\)', "", text)
    return re.sub(r"(?m)[ \t]*# [^\n]*$", "", text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@functools.cache  # an example that has run makes none again
def of_example(name: str) -> Kernel:
    """The first kernel of an example at its small shape, which ends with its call: there is no GPU."""
    made: list[Kernel] = []
    original = Kernel.__init__

    def init(self: Kernel, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        made.append(self)

    Kernel.__init__ = init  # type: ignore[method-assign]
    try:
        with tiledsl.settings(target="cuda:90"):
            example = load_example(name)
            example.main(**getattr(example, "SMALL", {}))
    except tiledsl.TileError as error:
        assert made, f"{name}: {error}"
    finally:
        Kernel.__init__ = original  # type: ignore[method-assign]
    return made[0]


def _variants(name: str, build: Callable[[], FuncOp], own: Mapping[str, Any]) -> Iterator[Golden]:
    for target, options in VARIANTS:
        shown = " ".join(f"{key}={value}" for key, value in options.items())
        yield Golden(f"{name} {target} {shown}".strip(), build, target, {**own, **options})


def example_programs(name: str) -> Iterator[Golden]:
    kernel = of_example(name)
    yield from _variants(name, kernel._build, kernel.pass_configs)


def named_programs(name: str) -> Iterator[Golden]:
    yield from _variants(f"named {name}", lambda: _without_yield(NAMED[name]()), {})


def _without_yield(func: FuncOp) -> FuncOp:
    """As elaboration makes programs; those for the executor end with a terminator."""
    last = func.body.last
    if last is not None and last.name == "scf.yield":
        last.erase()
    return func


def random_programs(seeds: Iterable[int] = range(RANDOM)) -> Iterator[Golden]:
    for seed in seeds:
        source, options = random_source(seed)
        program = tiledsl.parse(source)
        target, more = VARIANTS[seed % 4]
        yield Golden(f"random {seed}", lambda p=program: p.build(()), target, {**more, **options})


def everything() -> Iterator[Golden]:
    for name in EXAMPLES:
        yield from example_programs(name)
    for name in NAMED:
        yield from named_programs(name)
    yield from random_programs()


def recorded() -> dict[str, str]:
    return {line.partition(": ")[0]: line for line in FILE.read_text().splitlines() if not line.startswith("#")}
