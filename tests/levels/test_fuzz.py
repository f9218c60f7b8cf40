"""Damaged JSON files of levels: whatever they say, it is a TileError or the kernel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tiledsl.errors import TileError

KEYS = ("", " ", "0", "a b", "a-b", "class", "_a", "__class__", "ﬁ", "é", "a\n", "\u2028", "name", "target", "None")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 2**200, 0.5, 1e300, float("nan"), float("inf"), "", "x", "\n", "\udc80", "16",
    "90", [], [0], [[]], ["x"], {}, {"x": 1}, {"": 0}, {"a b": 1}, "__import__('os')", "i32", "constexpr", "*fp32",
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(each, (*path, key))


def _damaged(described: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every entry with some other values, under some other names, and gone."""
    text = json.dumps(described)
    for number, path in enumerate(_places(described)):
        for value in VALUES[number % 9 :: 9]:
            damaged = json.loads(text)
            _inside(damaged, path)[path[-1]] = value
            yield f"{path} = {value!r}", damaged
        if isinstance(path[-1], str):
            for key in KEYS[number % 7 :: 7]:
                damaged = json.loads(text)
                inner = _inside(damaged, path)
                inner[key] = inner[path[-1]]
                yield f"{path} beside {key!r}", json.loads(json.dumps(damaged))
                if key != path[-1]:
                    del inner[path[-1]]
                yield f"{path} as {key!r}", damaged
        damaged = json.loads(text)
        del _inside(damaged, path)[path[-1]]
        yield f"{path} gone", damaged


def _inside(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


@pytest.fixture(scope="module")
def folder(kernel: tiledsl.Kernel, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("damaged")
    for each in saved.iterdir():
        if each.suffix in (".cubin", ".json"):
            shutil.copy(each, made)
    return made


def test_every_damage_is_a_tile_error(kernel: tiledsl.Kernel, folder: Path) -> None:
    (file,) = folder.glob("*.json")
    name = file.stem
    read = accepted = 0
    for what, made in _damaged(json.loads(file.read_text())):
        file.write_text(json.dumps(made))
        read += 1
        try:
            kernel.from_level("cubin", folder).compiled[name].metadata["shared"]
        except TileError as error:
            assert str(error)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            accepted += 1
    assert 0 < accepted < read


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "{}", '{"name": {}}', "[" * 5000, '{"a": ' * 5000, "\0"]
)
def test_what_is_no_object(kernel: tiledsl.Kernel, folder: Path, text: str) -> None:
    (file,) = folder.glob("*.json")
    file.write_text(text)
    with pytest.raises(TileError, match="does not describe a kernel"):
        kernel.from_level("cubin", folder)
