"""Store a value that Triton's IR names into a tensor: an edit of a level's text."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from tiledsl.errors import TileError
from tiledsl.levels.build import read_mlir
from tiledsl.levels.bundle import LevelFile
from tiledsl.levels.metadata import MLIR_FLOATS
from tiledsl.levels.record import Argument, Record
from tiledsl.runtime.compile import CompileError, reported
from tiledsl.runtime.target import Target

LEVELS_WITH_VALUES = ("ttir", "ttgir")
# Element types in MLIR, as Triton names pointers to them in signatures.
_STORED = {name: short for short, name in MLIR_FLOATS.items()} | {f"i{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}
_NO_TYPE = "tensor<7x5x3xi3>"  # of no value


@dataclass(frozen=True)
class Dump:
    """A level that stores a value into its last argument, `name`: elements of type `dtype` in the shape `shape`."""

    file: LevelFile
    name: str
    dtype: str
    shape: tuple[int, ...]


def dumping(file: LevelFile, record: Record, target: Target, value: str, block: Sequence[int] | None) -> Dump:
    """The level with the value of an SSA name, such as "%acc_42" or "%9#1", stored in row-major order.

    It is stored each time that it is computed, by the block of the grid at `block`, or by each (None), one behind the
    other. Booleans are stored as int8. Raises TileError for names that the text does not have, and for what is no
    number.
    """
    lines = file.data.decode().split("\n")
    head, end = _function(lines, record.name, file)
    body = head + 1
    place = _after(lines[:end], body, value, file)
    taken = {each.name for each in record.arguments or ()} | set(re.findall(r"%(dump\d*)", "\n".join(lines)))
    name = next(each for each in ("dump", *(f"dump{number}" for number in range(2, 1 << 10))) if each not in taken)
    _check_region(lines, body, place, value, file)
    kind = _type(lines, place, value, file, record, target)
    shape, element = _shape_of(kind)
    if element != "i1" and element not in _STORED:
        raise TileError(
            f"{value} of {file.what} is a {kind}, not a number or a tile of numbers",
            notes=["name what is loaded from there, or computed of it"],
        )
    stored = "i8" if element == "i1" else element
    layout = _layout(lines, file, len(shape))
    text = _Text(f"%{name}", shape, layout)
    text.store(value, kind, element, stored, block)
    lines[place:place] = text.lines
    lines[head] = _with_parameter(lines[head], f"%{name}: !tt.ptr<{stored}>")
    argument = Argument(name, f"*{_STORED[stored]}")
    made = replace(record, arguments=(*(record.arguments or ()), argument), parameter_bytes=None)
    edited = LevelFile(file.level, "\n".join(lines).encode(), made)
    return Dump(edited, name, _STORED[stored], shape if block is not None else (-1, *shape))


def _function(lines: list[str], name: str, file: LevelFile) -> tuple[int, int]:
    """The line of the kernel's head, and the one behind its last."""
    for head, line in enumerate(lines):
        if re.match(rf"\s*tt\.func public @{re.escape(name)}\(", line):
            return head, _end(lines, head)
    raise TileError(f"{file.what} has no kernel {name}")


def _with_parameter(head: str, parameter: str) -> str:
    """The head of a function with one parameter more."""
    begin = head.index("(")
    depth = 0
    for place in range(begin, len(head)):
        depth += {"(": 1, ")": -1}.get(head[place], 0)
        if not depth:
            return head[:place] + (", " if place > begin + 1 else "") + parameter + head[place:]
    raise TileError("the head of the kernel is more than one line; print it as Triton does")


def _depth(line: str) -> int:
    """How many more braces and parentheses a line opens than it closes."""
    bare = re.sub(r'"[^"]*"', "", line)
    return sum(bare.count(each) for each in "({") - sum(bare.count(each) for each in ")}")


def _end(lines: list[str], number: int) -> int:
    """The number of the line behind an operation that begins in this one."""
    depth = _depth(lines[number])
    while depth > 0 and number + 1 < len(lines):
        number += 1
        depth += _depth(lines[number])
    return number + 1


def _after(lines: list[str], body: int, value: str, file: LevelFile) -> int:
    """The number of the line before which a value has just been computed."""
    found = re.fullmatch(r"(%[\w$.-]+)(#\d+)?", value)
    if found is None:
        raise TileError(f"{value!r} is no name of a value", notes=["write it as the text does: '%acc', '%9#1'"])
    name = re.escape(found[1])
    for number in range(body, len(lines)):
        line = lines[number]
        if re.match(rf"\s*(%[\w$.:-]+, )*{name}(:\d+)?(, %[\w$.:-]+)* = ", line):
            return _end(lines, number)
        if re.search(rf"(\bfor |\(|, ){name} = |\^bb\d+\((.*, )?{name}: ", line):
            return number + 1
    if re.search(rf"[(,] ?{name}: ", lines[body - 1]):
        return body
    names = sorted(set(re.findall(r"^\s*(%[\w$.-]+)", "\n".join(lines[body:]), re.MULTILINE)))
    near = difflib.get_close_matches(value, names, 3) or names[:8]
    raise TileError(f"{file.what} has no value {value}", notes=[f"it has {', '.join(near)}"])


def _check_region(lines: list[str], body: int, place: int, value: str, file: LevelFile) -> None:
    """Refuse values of the functions that reductions and scans combine two elements with."""
    around: list[str] = []
    for line in lines[body:place]:
        depth = _depth(line)
        around = [*around, *[line] * depth] if depth > 0 else around[: len(around) + depth]
    inside = next((found[1] for line in around if (found := re.search(r'"(tt\.\w+)"\(', line))), None)
    if inside is not None:
        raise TileError(
            f"{value} of {file.what} is computed for two elements at a time, inside of a {inside}",
            notes=["name its result, or what goes into it"],
        )


def _type(lines: list[str], place: int, value: str, file: LevelFile, record: Record, target: Target) -> str:
    """The type of a value, as the text's reader knows it: it says so where one of another type is asked for."""
    from triton.compiler.compiler import make_backend

    asked = f'"builtin.unrealized_conversion_cast"({value}) : ({_NO_TYPE}) -> ()'
    text = "\n".join([*lines[:place], asked, *lines[place:]])
    try:
        with tempfile.TemporaryDirectory() as folder, reported(record.name, target) as capture:
            path = Path(folder, f"{record.name[:150]}.{file.level}")
            path.write_text(text)
            read_mlir(path, replace(file, data=text.encode()), make_backend(target.triton_target()), capture.text)
    except CompileError as error:
        found = re.search(rf"prior uses: '{re.escape(_NO_TYPE)}' vs '(.*)'", str(error))
        if found is None:
            raise
        return found[1]
    raise AssertionError("no value has this type")


def _shape_of(kind: str) -> tuple[tuple[int, ...], str]:
    """The shape and the element type of a tensor; of a scalar () and its type."""
    found = re.fullmatch(r"tensor<((?:\d+x)*)(!tt\.ptr<.*?>|\w+)(?:, .*)?>", kind)
    if found is None:
        return (), kind
    return tuple(int(size) for size in found[1].split("x")[:-1]), found[2]


def _layout(lines: list[str], file: LevelFile, rank: int) -> str:
    """A plain layout for tiles of this rank; "" in ttir, which has none."""
    if file.level == "ttir" or not rank:
        return ""
    said = re.findall(r'"ttg\.(num-warps|num-ctas|threads-per-warp)" = (\d+)', "\n".join(lines))
    facts = {key: int(number) for key, number in said}
    if facts.get("num-ctas", 1) != 1:
        raise TileError(f"{file.what} is for clusters of {facts['num-ctas']} blocks, whose tiles have no plain layout")
    ones = ["1"] * (rank - 1)
    return (
        f"#ttg.blocked<{{sizePerThread = [{', '.join([*ones, '1'])}], "
        f"threadsPerWarp = [{', '.join([*ones, str(facts.get('threads-per-warp', 32))])}], "
        f"warpsPerCTA = [{', '.join([*ones, str(facts.get('num-warps', 4))])}], "
        f"order = [{', '.join(str(axis) for axis in reversed(range(rank)))}]}}>"
    )


class _Text:
    """Lines of IR that store a value."""

    def __init__(self, into: str, shape: tuple[int, ...], layout: str) -> None:
        self.into = into
        self.shape = shape
        self.layout = layout
        self.lines: list[str] = []

    def _value(self, text: str) -> str:
        name = f"{self.into}_{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _tensor(self, element: str, shape: tuple[int, ...] | None = None, layout: str | None = None) -> str:
        """A type; of the value's shape and in its plain layout, where nothing else is said."""
        sizes = "".join(f"{size}x" for size in (self.shape if shape is None else shape))
        layout = self.layout if layout is None else layout
        return f"tensor<{sizes}{element}{f', {layout}' if layout else ''}>"

    def store(self, value: str, kind: str, element: str, stored: str, block: Sequence[int] | None) -> None:
        pointer = f"!tt.ptr<{stored}>"
        if self.shape and self.layout:
            value = self._value(f"ttg.convert_layout {value} : {kind} -> {self._tensor(element)}")
        types = [self._tensor(each) if self.shape else each for each in (element, stored)]
        if element != stored:
            value = self._value(f"arith.extui {value} : {types[0]} to {types[1]}")
        begin = self.into if block is not None else self._begin(pointer)
        if self.shape:
            places, pointers = self._places(), self._tensor(pointer)
            begin = self._value(f"tt.splat {begin} : {pointer} -> {pointers}")
            begin = self._value(f"tt.addptr {begin}, {places} : {pointers}, {self._tensor('i32')}")
            pointer = pointers
        store = f"tt.store {begin}, {value} : {pointer}"
        self.lines += [store] if block is None else [f"scf.if {self._is_block(block)} {{", store, "}"]

    def _places(self) -> str:
        """Each element's number in row-major order."""
        total, kind = self._value(f"arith.constant dense<0> : {self._tensor('i32')}"), self._tensor("i32")
        for axis, size in enumerate(self.shape):
            if size == 1:
                continue
            removed = [*reversed(range(axis + 1, len(self.shape))), *reversed(range(axis))]
            layouts = [self.layout]
            for dim in removed:
                layouts.append(f"#ttg.slice<{{dim = {dim}, parent = {layouts[-1]}}}>" if self.layout else "")
            shape: tuple[int, ...] = (size,)
            own = self._tensor("i32", shape, layouts.pop())
            index = self._value(f"tt.make_range {{end = {size} : i32, start = 0 : i32}} : {own}")
            for dim in reversed(removed):
                shape = (*shape[:dim], 1, *shape[dim:])
                wide = self._tensor("i32", shape, layouts.pop())
                index = self._value(f"tt.expand_dims {index} {{axis = {dim} : i32}} : {own} -> {wide}")
                own = wide
            if own != kind:
                index = self._value(f"tt.broadcast {index} : {own} -> {kind}")
            stride = self._value(f"arith.constant dense<{prod(self.shape[axis + 1 :])}> : {kind}")
            index = self._value(f"arith.muli {index}, {stride} : {kind}")
            total = self._value(f"arith.addi {total}, {index} : {kind}")
        return total

    def _is_block(self, block: Sequence[int]) -> str:
        condition = ""
        for axis, number in zip("xyz", (*block, 0, 0)):
            wanted = self._value(f"arith.constant {number} : i32")
            here = self._value(f"tt.get_program_id {axis} : i32")
            same = self._value(f"arith.cmpi eq, {here}, {wanted} : i32")
            condition = same if not condition else self._value(f"arith.andi {condition}, {same} : i1")
        return condition

    def _begin(self, pointer: str) -> str:
        """Where the block of this program begins, with the first dimension of the grid the fastest."""
        number = ""
        for axis in "zyx":
            here = self._value(f"tt.get_program_id {axis} : i32")
            if number:
                count = self._value(f"tt.get_num_programs {axis} : i32")
                number = self._value(f"arith.muli {number}, {count} : i32")
                here = self._value(f"arith.addi {number}, {here} : i32")
            number = here
        size = self._value(f"arith.constant {prod(self.shape)} : i32")
        number = self._value(f"arith.muli {number}, {size} : i32")
        return self._value(f"tt.addptr {self.into}, {number} : {pointer}, i32")
