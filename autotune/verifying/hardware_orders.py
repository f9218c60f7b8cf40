"""In which order the instructions of a compiled kernel add. Part of bit_class, which says what for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tiledsl.digests import short_digest

_LAYOUT = re.compile(r"^#(\w+) = #([\w.]+)<(\{.*\})>\s*$", re.MULTILINE)
_DOT = re.compile(r"= (tt\.dot|ttng\.warp_group_dot|ttng\.tc_gen5_mma\w*|tt\.dot_scaled)\b(.*)$")
_REDUCE = re.compile(r'"(tt\.reduce|tt\.scan)"\(.*<\{(.*)\}> \(\{')
_TYPES = re.compile(r"tensor<((?:\d+x)*)([a-z]\w*), (#.*?)>(?=[,)\s]|$)")
_NUMBERS = re.compile(r"(\w+) = (\[[\d, ]*\]|\d+)")


def hardware_orders(ttgir: str) -> str:
    """In which order the instructions of a kernel add, from the IR that Triton compiles to machine code: the kind of
    each product's instruction, and how each reduced dimension lies in registers, lanes and warps."""
    layouts = {name: (kind, body) for name, kind, body in _LAYOUT.findall(ttgir)}
    orders: list[Any] = []
    lines = iter(ttgir.splitlines())
    for line in lines:
        if dot := _DOT.search(line):
            rest = re.sub(r"loc\(.*$", "", dot[2])
            result = re.split("tensor<|memdesc<", rest)[-1]
            kinds = [_instruction(*layouts[name]) for name in re.findall(r"#(\w+)", result) if name in layouts]
            elements = re.findall(r"x([a-z]\w*), ", rest)
            flags = re.findall(r"(inputPrecision = \w+|maxNumImpreciseAcc = \d+)", rest)
            orders.append((dot[1], kinds, sorted(set(elements)), flags))
        elif reduction := _REDUCE.search(line):
            body, types = [], ""
            for inner in lines:
                if inner.lstrip().startswith("})"):
                    types = inner
                    break
                body.append(" ".join(re.findall(r"= ([\w.]+) ", inner)))
            combine = [each for each in body if each]
            if reduction[1] == "tt.reduce" and all(re.search(r"max|min|andi|ori|xori|addi", each) for each in combine):
                continue
            axis = int(dict(_NUMBERS.findall(reduction[2]))["axis"])
            source = _TYPES.search(types.partition("->")[0])
            where = types if source is None else _along(source[1], source[3], axis, layouts)
            orders.append((reduction[1], reduction[2], combine, source[2] if source else "", where))
    return short_digest(repr([each for number, each in enumerate(orders) if each not in orders[:number]]))


def _instruction(kind: str, body: str) -> Any:
    numbers = dict(_NUMBERS.findall(body))
    if kind.endswith("nvidia_mma"):
        shape = numbers.get("instrShape", "[]").strip("[]").split(", ")
        return ("mma", numbers.get("versionMajor"), numbers.get("versionMinor"), shape[2:])
    return kind if kind.endswith("blocked") else (kind, body)


def _along(shape: str, layout: str, axis: int, layouts: Mapping[str, tuple[str, str]]) -> Any:
    """How one dimension of a tile lies in registers, lanes and warps."""
    sizes = [int(each) for each in shape.split("x") if each]
    extent = sizes[axis] if axis < len(sizes) else None
    while layout.startswith("#ttg.slice<"):
        inner = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>?$", layout)
        if inner is None:
            return shape, layout
        axis, layout = axis + (int(inner[1]) <= axis), inner[2]
    kind, body = layouts.get(layout[1:], ("", layout))
    numbers = {name: re.findall(r"\d+", value) for name, value in _NUMBERS.findall(body)}
    pick: Callable[[str], Any] = lambda name: numbers[name][axis] if name in numbers else None  # noqa: E731
    if kind.endswith("blocked"):
        return "blocked", extent, pick("sizePerThread"), pick("threadsPerWarp"), pick("warpsPerCTA")
    if kind.endswith("nvidia_mma"):
        return "mma", extent, numbers.get("versionMajor"), numbers.get("instrShape"), pick("warpsPerCTA")
    return shape, kind, body
