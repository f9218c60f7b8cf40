"""Passes: specs and options, verification after each, reproducers, stages, printing and dumps."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import check_pass, gather_rows, inputs_for
from tiledsl.dialects import arith
from tiledsl.errors import TileError
from tiledsl.ir import pass_manager
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import (
    PASSES,
    Pass,
    PassFailure,
    PassManager,
    Program,
    parse_program,
)
from tiledsl.passes.specs import make_pass, parse_pipeline
from tiledsl.runtime.target import Target


@pytest.fixture(autouse=True)
def _only_registered_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The passes of this file are known by name in its tests alone."""
    kept = dict(PASSES)
    for each in (Idle, ScaleConstants, BreakTypes, Crash, Complain, Promises):
        PASSES[each.name] = each
    yield
    PASSES.clear()
    PASSES.update(kept)


def constants(root: Operation) -> list[Operation]:
    return [op for op in root.walk() if isinstance(op, arith.ConstantOp)]


@dataclass(frozen=True)
class Idle(Pass):
    name = "test-idle"

    def run(self, program: Program) -> None:
        pass


@dataclass(frozen=True)
class ScaleConstants(Pass):
    name = "test-scale-constants"
    factor: int = 2
    only: str = ""
    deep: bool = True
    limit: int | None = None
    slack: float = 0.5

    def run(self, program: Program) -> None:
        for op in constants(program.root):
            op.set_attribute("value", op.attributes["value"] * self.factor)


@dataclass(frozen=True)
class BreakTypes(Pass):
    name = "test-break-types"

    def run(self, program: Program) -> None:
        constants(program.root)[0].set_attribute("value", 0.5)


@dataclass(frozen=True)
class Crash(Pass):
    name = "test-crash"

    def run(self, program: Program) -> None:
        raise RuntimeError("first line\nsecond line")


@dataclass(frozen=True)
class Complain(Pass):
    name = "test-complain"

    def run(self, program: Program) -> None:
        raise TileError("the user's mistake")


@dataclass(frozen=True)
class Promises(Pass):
    """Does what no pass may do."""

    name = "test-promises"
    how: str = ""

    def run(self, program: Program) -> Any:
        if self.how == "returns":
            return Program(program.root, program.target)
        if self.how == "root":
            program.root = program.root.clone({})
        if self.how == "target":
            program.target = None
        if self.how == "exit":
            sys.exit(0)
        if self.how == "library":
            json.loads("x")
        if self.how == "error":
            raise TileError("no")
        return None


for _each in (Idle, ScaleConstants, BreakTypes, Crash, Complain, Promises):
    del PASSES[_each.name]


def program() -> Program:
    return Program(gather_rows())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("test-idle", [Idle()]),
        ("", []),
        ("test-idle,test-scale-constants{factor=3}", [Idle(), ScaleConstants(3)]),
        (" test-scale-constants{ only=row deep=false } , test-idle", [ScaleConstants(only="row", deep=False), Idle()]),
        ("test-scale-constants{limit=none slack=2}", [ScaleConstants(slack=2.0)]),
        ("test-scale-constants{slack=0.25 limit=7 factor=-1}", [ScaleConstants(-1, slack=0.25, limit=7)]),
        ("test-scale-constants{slack=inf}", [ScaleConstants(slack=float("inf"))]),
        ('test-scale-constants{only="a,b c"}', [ScaleConstants(only="a,b c")]),
        ('test-scale-constants{only="3"}', [ScaleConstants(only="3")]),
        ('test-scale-constants{only="} \\" x="}', [ScaleConstants(only='} " x=')]),
    ],
)  # fmt: skip
def test_pipelines_round_trip(spec: str, expected: list[Pass]) -> None:
    passes = parse_pipeline(spec)
    assert passes == expected
    assert parse_pipeline(",".join(each.spec for each in passes)) == expected


def test_specs_show_what_differs_from_the_defaults() -> None:
    assert ScaleConstants().spec == "test-scale-constants"
    assert ScaleConstants(5, deep=False, only="x").spec == 'test-scale-constants{factor=5 only="x" deep=false}'


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", ":1:1: error: no pass is named 'nonsense'; there are .*test-idle"),
        ("test-idle,test-scale-constants{size=3}", ":1:11: error: .* no option 'size'; its options are factor, only"),
        ("test-idle{size=3}", "no option 'size'; it has none"),
        ("test-scale-constants{factor=yes}", "factor='yes', but its type is int"),
        ("test-scale-constants{factor=true}", "factor=True, but its type is int"),
        ("test-scale-constants{deep=1}", "deep=1, but its type is bool, true or false"),
        ("test-scale-constants{deep=none}", "deep=None, but its type is bool, true or false"),
        ("test-scale-constants{only=a=b}", r"(?s):1:28: error: expected .*note: .* other=\"A=tma,C=pointer\"\}"),
        ("test-scale-constants{only='a'}", r"(?s):1:27: error: unexpected character .*note: passes are written"),
        ("test-scale-constants{factor}", r":1:28: error: expected '=' but found '}'"),
        ("test-scale-constants{factor=}", r":1:29: error: expected an attribute but found '}'"),
        ("test-idle test-idle", r":1:11: error: expected ',' but found 'test-idle'"),
        ("test-scale-constants{factor=3", "expected option=value but found 'the end'"),
        ("test-idle}", r":1:10: error: expected ',' but found '}'"),
        ("test-scale-constants{factor=3}test-idle", r":1:31: error: expected ',' but found 'test-idle'"),
        ("test-idle,{factor=3}", r"expected a pass, name or name\{option=value\}, but found '\{'"),
    ],
)
def test_wrong_pipelines(spec: str, message: str) -> None:
    with pytest.raises(TileError, match=message):
        parse_pipeline(spec)


def test_make_pass() -> None:
    assert make_pass("test-scale-constants", {"factor": 4, "limit": 3}) == ScaleConstants(4, limit=3)


def test_stages_have_times_and_text() -> None:
    stages = PassManager([Idle(), ScaleConstants(3)], keep_text=True).run(program())
    assert [stage.name for stage in stages] == ["test-idle", "test-scale-constants"]
    assert stages[1].spec == "test-scale-constants{factor=3}" and all(stage.milliseconds > 0 for stage in stages)
    assert stages[0].text is not None and stages[1].text is not None and stages[0].text != stages[1].text
    assert parse_program(stages[1].text)
    assert PassManager([Idle()]).run(program())[0].text is None


def test_a_pass_that_breaks_the_ir_is_named_and_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_manager.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PassFailure, match=r"test-break-types failed: arith\.constant") as caught:
        PassManager([Idle(), BreakTypes(), ScaleConstants(3)]).run(program())
    assert caught.value.spec == "test-break-types"
    text = Path(caught.value.reproducer).read_text()
    assert os.path.dirname(caught.value.reproducer) == str(tmp_path)
    assert f"-p 'test-break-types,test-scale-constants{{factor=3}}' --load '{__file__}'\n" in text
    assert "This is a bug in the pass, which is from tests.ir.test_pass_manager" in str(caught.value)
    # The reproducer holds the program as the pass got it: running its pipeline fails again.
    rest = [each for each in (Idle(), BreakTypes(), ScaleConstants(3)) if each.name != "test-idle"]
    with pytest.raises(PassFailure, match=r"test-break-types failed: arith\.constant"):
        PassManager(rest).run(parse_program(text))


def test_a_crash_leaves_a_reproducer_that_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_manager.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PassFailure, match="first line") as caught:
        PassManager([Idle(), Crash()]).run(Program(gather_rows(), Target.parse("cuda:90")))
    text = Path(caught.value.reproducer).read_text()
    assert f"-p 'test-crash' --load '{__file__}' --target cuda:90\n" in text
    again = parse_program(text)
    assert str(again.root) == str(program().root) and "second line" not in text
    pipeline = re.search("-p '([^']*)'", text)
    assert pipeline is not None and parse_pipeline(pipeline[1]) == [Crash()]
    assert isinstance(caught.value.__cause__, RuntimeError)
    line = Crash.run.__code__.co_firstlineno + 1
    place = f'File "{__file__}", line {line}, in run'
    assert f"failed: RuntimeError: first line\nsecond line\n  {place}" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "message", "line"),
    [
        (
            "returns",
            "run returned a Program, where None is asked: it changes the operations in program.root in place",
            0,
        ),
        ("root", "run has set program.root; it changes the operations in program.root in place", 0),
        ("target", "run has set program.target to None; a pass asks for the target, and leaves it", 0),
        ("exit", "RuntimeError: run ended the process, sys.exit(0)", 8),
        ("library", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 10),
    ],
)
def test_what_a_pass_promises(how: str, message: str, line: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pass_manager.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PassFailure) as caught:
        PassManager([Idle(), Promises(how)]).run(Program(gather_rows(), Target.parse("cuda:90")))
    assert str(caught.value).startswith(f'pass test-promises{{how="{how}"}} failed: {message}')
    first = Promises.run.__code__.co_firstlineno
    assert caught.value.place == ((__file__, first + line, "run") if line else None)
    assert f"which is from {__name__}, {__file__}:{first}; the program is in {tmp_path}" in str(caught.value)
    PassManager([Promises("")]).run(program())


def test_a_mistake_that_a_users_pass_finds_names_the_pass() -> None:
    with pytest.raises(TileError) as caught:
        PassManager([Promises("error")]).run(program())
    assert str(caught.value) == f'no\n  note: the pass test-promises{{how="error"}} says so, which is from {__name__}'


def test_a_pass_that_does_not_do_the_same_each_time() -> None:
    @dataclass(frozen=True)
    class Moody(Pass):
        """Raises from its second run on."""

        def run(self, program: Program) -> None:
            runs.append(1)
            if len(runs) > 1:
                raise ValueError("not again")

    runs: list[int] = []
    with pytest.raises(PassFailure, match="pass test-crash failed") as caught:
        PassManager([Moody(), Crash()]).run(program())
    assert caught.value.reproducer == "" and "the program could not be made again: pass  failed" in str(caught.value)


@pytest.mark.parametrize("how", ["order", "twice", "type", "nested"])
def test_what_a_users_pass_changes_past_our_methods_is_found(how: str) -> None:
    @dataclass(frozen=True)
    class Past(Pass):
        """Changes lists and types by itself."""

        def run(self, program: Program) -> None:
            kernel = next(op for op in program.root.walk() if op.name == "tile.kernel")
            region = kernel.regions[0]
            if how == "order":
                region.ops.insert(0, region.ops.pop())
            elif how == "twice":
                region.ops.append(region.ops[-1])
            elif how == "nested":
                assert kernel.parent is not None
                kernel.parent.nested.clear()
            else:
                constant = next(op for op in program.root.walk() if op.name == "arith.constant")
                constant.results[0].type = "float64"

    message = (
        "out is of type float64|result is of type float64" if how == "type" else "its operations were changed past"
    )
    with pytest.raises(PassFailure, match=f"^pass  failed: .*({message})"):
        PassManager([Past(), Idle()]).run(program())


def test_a_pass_has_a_method_run() -> None:
    for what, given in (("missing", {}), ("NoneType", {"run": None})):
        with pytest.raises(TileError) as caught:
            type("NoRun", (Pass,), {"name": "test-no-run", "__module__": __name__, **given})
        asked = "where a method is asked: def run(self, program: Program) -> None"
        assert str(caught.value) == f"NoRun: run is {what}, {asked}"
    assert "test-no-run" not in pass_manager.PASSES


@pytest.mark.parametrize(
    "done, message",
    [
        ("sys.exit(0)", "RuntimeError: run ended the process"),
        ("program.root = None", "run has set program.root"),
        ("return super(type(self), self).run(program)", "Odd has no method run"),
    ],
)
def test_a_pass_that_leaves_no_program_has_failed(
    done: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_manager.tempfile, "tempdir", str(tmp_path))
    space: dict[str, Any] = {"sys": sys, "Pass": Pass, "__name__": __name__}
    exec(f"class Odd(Pass):\n    name = 'test-odd'\n    def run(self, program):\n        {done}\n", space)
    with pytest.raises(PassFailure, match=message):
        PassManager([space["Odd"](), Idle()]).run(program())


def test_the_pass_that_breaks_the_program_is_named_wherever_it_stands() -> None:
    for passes in ([BreakTypes()], [Idle(), BreakTypes(), Idle()], [ScaleConstants(), Idle(), Idle(), BreakTypes()]):
        with pytest.raises(PassFailure, match="pass test-break-types failed"):
            PassManager(passes).run(program())


def test_without_verification_a_broken_pass_goes_on() -> None:
    assert len(PassManager([BreakTypes(), Idle()], verify_each=False).run(program())) == 2


def test_a_users_mistake_is_no_bug() -> None:
    with pytest.raises(TileError, match="the user's mistake"):
        PassManager([Complain()]).run(program())


@pytest.mark.parametrize(
    ("print_after", "shown"),
    [
        ("", []),
        ("all", ["test-idle", "test-scale-constants", "test-idle"]),
        ("changed", ["test-scale-constants"]),
        ("test-idle", ["test-idle", "test-idle"]),
    ],
)
def test_print_after(print_after: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    PassManager([Idle(), ScaleConstants(), Idle()], print_after=print_after).run(program())
    out, err = capsys.readouterr()
    assert out == "" and re.findall(r"// ----- after (\S+) -----", err) == shown


def test_dump_dir(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "dump"
    PassManager([Idle(), ScaleConstants()], dump_dir=str(folder)).run(program())
    assert sorted(each.name for each in folder.iterdir()) == [
        "00-input.mlir",
        "01-test-idle-same.mlir",
        "02-test-scale-constants.mlir",
    ]
    text = (folder / "02-test-scale-constants.mlir").read_text()
    assert text.startswith("// after: test-scale-constants\n") and parse_program(text)


def test_stop_after() -> None:
    stages = PassManager([Idle(), ScaleConstants(), Idle()], stop_after="test-scale-constants").run(program())
    assert [stage.name for stage in stages] == ["test-idle", "test-scale-constants"]
    with pytest.raises(TileError, match="has no pass 'cse'; it has test-idle"):
        PassManager([Idle()], stop_after="cse").run(program())


def test_check_pass_sees_a_changed_meaning() -> None:
    func = gather_rows()
    inputs = inputs_for(func)
    check_pass("test-idle", func, inputs)
    check_pass([Idle(), Idle()], func, inputs)
    with pytest.raises(AssertionError, match="Y after the pass"):
        check_pass(lambda program: constants(program.root)[1].set_attribute("value", 9), func, inputs)
