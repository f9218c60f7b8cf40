"""Calls to be tuned offline: from CSV and JSON files, and from ranges on the command line."""

from __future__ import annotations

import ast
import csv
import difflib
import inspect
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiledsl import strict_json
from tiledsl.errors import TileError, register_source
from tiledsl.files import read_file
from tiledsl.location import Loc

_RANGE = re.compile(r"\s*(-?\d+)\s*:\s*(-?\d+)\s*:\s*([x+]?)\s*(\d+)\s*")
_LIKE_A_RANGE = re.compile(r"\s*-?\d+\s*:")
_FORMS = "M=16, M=16,32,64, M=16:4096:x2 (times 2, the end included) or M=128:1024:+128"


def read_shapes(path: Path) -> list[dict[str, Any]]:
    """The calls of a file. CSV: names in the first line, a call in each other one; an empty cell leaves an argument
    out, lines that begin with # are comments. JSON: a list of objects. TileError for what is neither."""
    try:
        content = read_file(path)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TileError(f"{path} cannot be read: it is not UTF-8") from None
    except (OSError, ValueError) as error:
        raise TileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found = _of_json(path, text) if path.suffix.lower() == ".json" else _of_csv(path, text)
    if not found:
        raise TileError(f"{path} has no shapes")
    return found


def check_names(
    path: Path | None, function: str, signature: inspect.Signature, names: Iterable[str] | None = None
) -> None:
    """TileError for an argument in a file of shapes, or in `names`, that the function does not have: at its place in
    the file."""
    parameters = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    places: dict[str, Loc | None] = dict.fromkeys(names or ())
    if path is not None:
        places = _places(path)
    for name, loc in places.items():
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, 1)
            where = f"{path}: " if path is not None and loc is None else ""
            message = f"{where}{function} has no parameter {name!r}; its parameters are {', '.join(parameters)}"
            raise TileError(message, loc, [f"did you mean {near[0]}?"] if near else [])


def _places(path: Path) -> dict[str, Loc | None]:
    """The arguments that a file of shapes names, in CSV with their places in the first line that is no comment."""
    if path.suffix.lower() == ".json":
        return {name: None for shape in read_shapes(path) for name in shape}
    for number, line in enumerate(read_file(path).decode("utf-8-sig").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            register_source(str(path), read_file(path).decode("utf-8-sig"))
            words = re.finditer(r"[^\W\d]\w*", line)
            return {w[0]: Loc(str(path), number, w.start() + 1, number, w.end() + 1) for w in words}
    return {}


def _of_json(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        data = strict_json.parse(text)
    except strict_json.NONSENSE as error:
        raise TileError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
        raise TileError(f'{path} is no list of objects, such as [{{"M": 16, "N": 1024}}]')
    repeated = strict_json.repeated_names(text)
    if repeated:
        raise TileError(f"{path}: a shape has {repeated[0]} twice")
    return data


def _of_csv(path: Path, text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        heads, *rows = list(csv.reader(io.StringIO("\n".join(lines)), skipinitialspace=True, strict=True)) or [[]]
    except csv.Error as error:
        raise TileError(f"{path} is not CSV: {error}") from None
    names = [name.strip() for name in heads]
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or len(set(names)) != len(names):
        raise TileError(f"{path}: the first line names the arguments, each once, as in M,N; it is {','.join(heads)!r}")
    shapes = []
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise TileError(f"{path}: shape {number - 1} has {len(row)} values for {len(names)} arguments: {row}")
        shapes.append({name: parse_value(cell) for name, cell in zip(names, row) if cell.strip()})
    return shapes


def parse_value(text: str) -> Any:
    """A Python literal, else the text, such as the name of an element type."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def parse_values(text: str) -> tuple[str, list[Any]]:
    """The name and the values of `M=16:4096:x2`, `N=1024,4096` or `dtype=float16`. TileError for other forms."""
    name, sign, values = text.partition("=")
    name = name.strip()
    if not sign or not name.isidentifier() or not values.strip():
        raise TileError(f"{text!r} is not name=values", notes=[f"write {_FORMS}"])
    listed: list[Any] = []
    for part in _parts(values):
        matched = _RANGE.fullmatch(part)
        if not part.strip() or matched is None and _LIKE_A_RANGE.match(part):
            raise TileError(f"{text!r} is no list of values", notes=[f"write {_FORMS}"])
        listed += [parse_value(part)] if matched is None else _range(text, matched)
    return name, listed


def _parts(text: str) -> list[str]:
    """Divided at the commas that stand in no brackets."""
    if text.strip()[:1] in ("(", "[", "{", "'", '"'):
        return [text]
    return text.split(",")


def _range(text: str, matched: re.Match[str]) -> list[int]:
    first, last, step = int(matched[1]), int(matched[2]), int(matched[4])
    times = matched[3] == "x"
    if last < first or step < 1 + times or times and first < 1:
        raise TileError(f"{text!r} is no range", notes=[f"write {_FORMS}"])
    values = [first]
    while True:
        following = values[-1] * step if times else values[-1] + step
        if following > last:
            return values
        values.append(following)


def product(shapes: Sequence[Mapping[str, Any]], ranges: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every shape with every combination of the ranges' values, each call once. TileError if both name an argument."""
    twice = [name for name in ranges if any(name in shape for shape in shapes)]
    if twice:
        raise TileError(f"{twice[0]} comes both from a file of shapes and from -D")
    combinations = [dict(zip(ranges, values)) for values in itertools.product(*ranges.values())]
    calls: list[dict[str, Any]] = []
    for shape in shapes or [{}]:
        for each in combinations:
            call = {**shape, **each}
            if call not in calls:
                calls.append(call)
    return calls
