"""Passes, and the manager that runs, times, verifies and prints them."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from tiledsl.errors import PassFailure as PassFailure
from tiledsl.errors import TileError, meant
from tiledsl.ir.core import Operation, changes
from tiledsl.ir.parser import Parser
from tiledsl.ir.printer import attribute_text, print_op
from tiledsl.ir.verifier import verify
from tiledsl.pass_promises import check_methods, place_of, run_in_place


@dataclass
class Program:
    """A `tile.func` on its way through the pipeline. `target` is a runtime Target, or None before one is chosen."""

    root: Operation
    target: Any = None


PASSES: dict[str, type[Pass]] = {}


def is_ours(pass_type: type[Pass]) -> bool:
    """Whether a pass is a part of tiledsl, not a user's."""
    return pass_type.__module__.partition(".")[0] == "tiledsl"


@dataclass(frozen=True)
class Pass:
    """One step of the pipeline. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if not is_ours(cls) and is_ours(PASSES.get(cls.name, cls)):
            raise TileError(f"{cls.__name__}: tiledsl has a pass {cls.name!r} of its own; choose another name")
        check_methods(cls, Pass.run)
        if cls.name:
            PASSES[cls.name] = cls

    def run(self, program: Program) -> None:
        """Change the program in place."""
        raise NotImplementedError(f"{type(self).__name__} has no method run(self, program)")

    def allowances(self, program: Program) -> frozenset[str]:
        """What of the bits of results the pass may change in this program, by the names of certificate/exact.py."""
        return frozenset()

    @cached_property
    def spec(self) -> str:
        """`name{option=value ...}`, with only the options that differ from their defaults."""
        shown = [
            f"{option.name}={attribute_text(getattr(self, option.name))}"
            for option in dataclasses.fields(self)
            if getattr(self, option.name) != option.default
        ]
        return self.name + ("{" + " ".join(shown) + "}" if shown else "")


@dataclass
class Stage:
    """The result of one pass: its spec, its time in milliseconds and, if requested, the text of the IR after it."""

    name: str
    spec: str
    milliseconds: float
    text: str | None = None

    def __repr__(self) -> str:
        lines = "" if self.text is None else f", {len(self.text.splitlines())} lines"
        return f"<stage {self.spec}: {self.milliseconds:.2f} ms{lines}>"


@dataclass
class PassManager:
    """Runs passes in order.

    `print_after` is '', 'all', 'changed' or a pass's name and writes to stderr; `dump_dir` gets NN-name.mlir files,
    those of passes that changed nothing marked `-same`; `keep_text` keeps each stage's text, with source locations if
    `locations` says so; `stop_after` names the pass whose last run is the end.
    """

    passes: Sequence[Pass]
    verify_each: bool = True
    print_after: str = ""
    dump_dir: str = ""
    keep_text: bool = False
    locations: bool = False
    stop_after: str = ""
    rebuild: Callable[[], Program] | None = None  # makes the program again, for a reproducer
    stages: list[Stage] = field(default_factory=list)

    def run(self, program: Program) -> list[Stage]:
        """Run all passes. An internal failure of a pass raises PassFailure and leaves a reproducer file."""
        names = [each.name for each in self.passes]
        if self.stop_after and self.stop_after not in names:
            raise TileError(f"the pipeline has no pass {self.stop_after!r}; {meant(self.stop_after, names, 'it has')}")
        end = len(names) - names[::-1].index(self.stop_after) if self.stop_after else len(names)
        rebuild = self.rebuild or partial(Program, program.root.clone({}), program.target)
        watch = bool(self.print_after or self.dump_dir or self.keep_text)
        text = print_op(program.root, locations=self.locations) if watch else ""
        self._dump("00-input", text)
        verified = -1
        for number, current in enumerate(self.passes[:end], 1):
            start = time.perf_counter()
            try:
                ours = is_ours(type(current))  # others may change what no method of the IR sees
                run_in_place(current, program, ours)
                if self.verify_each and not (ours and verified == changes[0]):
                    verify(program.root, everything=not ours)
                    verified = changes[0]
            except TileError:
                raise
            except Exception as error:
                raise self._failure(current, number, rebuild, error) from error
            stage = Stage(current.name, current.spec, (time.perf_counter() - start) * 1e3)
            self.stages.append(stage)
            if watch:
                before, text = text, print_op(program.root, locations=self.locations)
                stage.text = text if self.keep_text else None
                if self.print_after in ("all", current.name) or (self.print_after == "changed" and text != before):
                    print(f"// ----- after {stage.spec} -----\n{text}", file=sys.stderr)
                same = "-same" * (text == before)
                self._dump(f"{number:02d}-{current.name}{same}", f"// after: {stage.spec}\n{text}")
        return self.stages

    def _dump(self, name: str, text: str) -> None:
        if self.dump_dir:
            os.makedirs(self.dump_dir, exist_ok=True)
            Path(self.dump_dir, f"{name}.mlir").write_text(text + "\n", encoding="utf-8")

    def _failure(self, failing: Pass, number: int, rebuild: Callable[[], Program], error: Exception) -> PassFailure:
        """The error to raise, with a reproducer file."""
        whose = "" if is_ours(type(failing)) else place_of(type(failing))
        # The input of every pass is not kept, which would double the cost of the pipeline: it is made again.
        try:
            before = rebuild()
            PassManager(self.passes[: number - 1], verify_each=False).run(before)
        except Exception as other:  # of a pass that does not do the same each time
            return PassFailure(failing.spec, error, "", whose, again=other)
        rest = ",".join(later.spec for later in self.passes[number - 1 :])
        modules = {sys.modules.get(type(each).__module__) for each in self.passes if not is_ours(type(each))}
        loaded = sorted({str(file) for each in modules if (file := getattr(each, "__file__", None))})
        rest += "'" + "".join(f" --load '{file}'" for file in loaded)
        handle, path = tempfile.mkstemp(".mlir", f"tiledsl-{failing.name}-")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(f"// pass {failing.spec} failed: {(str(error) or repr(error)).splitlines()[0]}\n")
            target = f" --target {before.target}" if before.target is not None else ""
            file.write(f"// tiledsl opt {path} -p '{rest}{target}\n{print_op(before.root, locations=True)}\n")
        return PassFailure(failing.spec, error, path, whose, before.root.loc)


def parse_program(text: str, target: Any = None) -> Program:
    """A program from its IR text, verified. Raises TileError for text that is not valid IR."""
    return Program(Parser(text, "<ir>").verified(), target)
