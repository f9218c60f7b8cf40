"""Shared variables keep the meaning of random structured programs: the emitted text, run as plain Python."""

from __future__ import annotations

import random
import types
from typing import Any

import pytest

from tiledsl.codegen.kernels import KernelWriter
from tiledsl.dialects import arith, scf, tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BOOL, INT32, BufferType, ScalarType
from tiledsl.ir.verifier import verify

NAMES = ["", "", "acc", "acc", "m", "x"]
POINTER = ScalarType("*int32")


class RandomProgram:
    """A launch whose body is random nested control flow over int32 scalars; every value may be stored at the end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.body = Region([POINTER], ["out"])
        self.slot = 0
        self.budget = 24
        at = Builder(self.body)
        values = [at.constant(number, INT32) for number in (0, 1, 3)]
        values.append(self.named(at.insert(triton.ProgramIdOp(axis=0)).result))
        values = self.statements(at, values, 0)
        for value in values[-4:]:
            self.store(at, value)
        host = Region([BufferType((64,), "int32", "global")], ["out"])
        self.launch = triton.LaunchOp([], list(host.args), sym_name="kernel", regions=[self.body])
        host.insert(self.launch)
        self.func = tile.FuncOp(sym_name="program", parameters=("out",), regions=[host])

    def named(self, value: Value) -> Value:
        value.name = self.random.choice(NAMES)
        return value

    def store(self, at: Builder, value: Value) -> None:
        offset = at.constant(self.slot, INT32)
        self.slot += 1
        pointer = at.insert(triton.AddPtrOp(self.body.args[0], offset)).result
        at.insert(triton.StoreOp(pointer, value))

    def pick(self, values: list[Value], count: int) -> list[Value]:
        recent = values[-5:]
        return [self.random.choice(recent if self.random.random() < 0.7 else values) for _ in range(count)]

    def arithmetic(self, at: Builder, values: list[Value]) -> Value:
        kind = self.random.choice([arith.AddOp, arith.SubOp, arith.MaxOp, arith.XorOp])
        out = at.insert(kind(*self.pick(values, 2))).result
        if self.random.random() < 0.5:
            return self.named(out)
        return self.named(at.insert(arith.AndOp(out, at.constant(1023, INT32))).result)

    def condition(self, at: Builder, values: list[Value]) -> Value:
        predicate = self.random.choice(["lt", "ge", "eq"])
        return at.insert(arith.CmpOp(*self.pick(values, 2), predicate=predicate, result_types=[BOOL])).result

    def statements(self, at: Builder, values: list[Value], depth: int) -> list[Value]:
        values = list(values)
        for _ in range(self.random.randint(1, 5)):
            self.budget -= 1
            choice = self.random.random()
            if choice < 0.55 or depth >= 3 or self.budget < 0:
                values.append(self.arithmetic(at, values))
            elif choice < 0.65:
                self.store(at, self.pick(values, 1)[0])
            elif choice < 0.8:
                values += self.for_loop(at, values, depth)
            elif choice < 0.92:
                values += self.branch(at, values, depth)
            else:
                values += self.while_loop(at, values, depth)
        return values

    def for_loop(self, at: Builder, values: list[Value], depth: int) -> list[Value]:
        inits = self.pick(values, self.random.randint(0, 3))
        region = Region([INT32] * (1 + len(inits)), ["i", *(self.random.choice(NAMES) for _ in inits)])
        inner = self.statements(Builder(region), values + region.args, depth + 1)
        scf.yielding(region, self.pick(inner, len(inits)))
        upper = at.insert(arith.AndOp(self.pick(values, 1)[0], at.constant(3, INT32))).result
        lower, step = at.constant(0, INT32), at.constant(1, INT32)
        return at.insert(scf.ForOp(lower, upper, step, inits, regions=[region])).results

    def branch(self, at: Builder, values: list[Value], depth: int) -> list[Value]:
        count = self.random.randint(0, 3)
        condition = self.condition(at, values)
        regions = []
        for _ in range(2):
            region = Region()
            inner = self.statements(Builder(region), values, depth + 1) if self.random.random() < 0.8 else values
            regions.append(scf.yielding(region, self.pick(inner, count)))
        op = at.insert(scf.IfOp(condition, result_types=[INT32] * count, regions=regions))
        return [self.named(value) for value in op.results]

    def while_loop(self, at: Builder, values: list[Value], depth: int) -> list[Value]:
        # The first carried value counts up to a limit; the others do anything.
        inits = [at.constant(0, INT32), *self.pick(values, self.random.randint(1, 3))]
        before = Region([INT32] * len(inits), ["count", *(self.random.choice(NAMES) for _ in inits[1:])])
        inside = Builder(before)
        known = self.statements(inside, values + before.args, 3) if self.random.random() < 0.5 else values + before.args
        going = inside.insert(
            arith.CmpOp(before.args[0], inside.constant(3, INT32), predicate="lt", result_types=[BOOL])
        ).result
        handed = list(before.args[1:]) if self.random.random() < 0.5 else self.pick(known, len(inits) - 1)
        before.insert(scf.ConditionOp(going, [before.args[0], *handed]))
        after = Region([INT32] * len(inits), ["count", *(self.random.choice(NAMES) for _ in inits[1:])])
        body = Builder(after)
        following = body.insert(arith.AddOp(after.args[0], body.constant(1, INT32))).result
        inner = self.statements(body, values + after.args, depth + 1)
        scf.yielding(after, [following, *self.pick(inner, len(inits) - 1)])
        return at.insert(scf.WhileOp(inits, regions=[before, after])).results


def execute(launch: triton.LaunchOp, memory: dict[int, int]) -> None:
    """The launch's meaning, evaluated on the IR itself."""
    env: dict[Value, Any] = {launch.body.args[0]: 0}

    def run(region: Region) -> list[Any]:
        for op in region:
            values = [env[value] for value in op.operands]
            if isinstance(op, (scf.YieldOp, scf.ConditionOp)):
                return values
            step(op, values)
        return []

    def step(op: Operation, values: list[Any]) -> None:
        results: list[Any] = []
        if isinstance(op, arith.ConstantOp):
            results = [op.value]
        elif isinstance(op, triton.ProgramIdOp):
            results = [5]
        elif isinstance(op, triton.AddPtrOp):
            results = [sum(values)]
        elif isinstance(op, triton.StoreOp):
            memory[values[0]] = values[1]
        elif isinstance(op, arith.CmpOp):
            results = [arith.PREDICATES[op.predicate](*values)]
        elif isinstance(op, arith.BinaryOp):
            results = [op.compute(*values)]
        elif isinstance(op, scf.IfOp):
            results = run(op.then if values[0] else op.orelse)
        elif isinstance(op, scf.ForOp):
            results = values[3:]
            for index in range(*values[:3]):
                env.update(zip(op.body.args, [index, *results]))
                results = run(op.body)
        elif isinstance(op, scf.WhileOp):
            carried = values
            while True:
                env.update(zip(op.before.args, carried))
                going, *results = run(op.before)
                if not going:
                    break
                env.update(zip(op.after.args, results))
                carried = run(op.after)
        else:
            raise AssertionError(op.name)
        env.update(zip(op.results, results))

    run(launch.body)


def execute_text(lines: list[str], memory: dict[int, int]) -> None:
    """The kernel's text as plain Python."""
    fake = types.SimpleNamespace(
        program_id=lambda axis: 5,
        store=memory.__setitem__,
        maximum=max,
        range=lambda *bounds, **options: range(*bounds),
    )
    scope: dict[str, Any] = {"tl": fake, "triton": types.SimpleNamespace(jit=lambda function: function)}
    exec("\n".join(lines), scope)
    scope["kernel"](0)


@pytest.mark.parametrize("block", range(10))
def test_random_control_flow(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        program = RandomProgram(seed)
        verify(program.func)
        expected: dict[int, int] = {}
        execute(program.launch, expected)
        lines = KernelWriter(program.launch, {"kernel"}).write()
        got: dict[int, int] = {}
        execute_text(lines, got)
        assert got == expected, f"seed {seed}\n" + "\n".join(lines)
