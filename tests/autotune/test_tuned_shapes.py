"""Shapes from files and from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiledsl.autotuner.tuned.shapes import parse_values, product, read_shapes
from tiledsl.errors import TileError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("M=16", [16]),
        ("M=16,32, 64", [16, 32, 64]),
        ("M=16:4096:x2", [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
        ("M=16:100:x3", [16, 48]),
        ("M=128:512:+128", [128, 256, 384, 512]),
        ("M=0:10:5", [0, 5, 10]),
        ("M=1,8:32:x2,100", [1, 8, 16, 32, 100]),
        ("dtype=float16,bfloat16", ["float16", "bfloat16"]),
        ("shape=(1, 2)", [(1, 2)]),
        ("causal=True", [True]),
    ],
)
def test_values(text: str, values: list[Any]) -> None:
    assert parse_values(text) == (text.partition("=")[0], values)


NONSENSE = ["M", "M=", "=3", "1M=3", "M=16:8:x2", "M=16:64:x1", "M=0:64:x2", "M=0:64:0", "M=16:64", "M=1,,2"]


@pytest.mark.parametrize("text", NONSENSE)
def test_values_of_nonsense(text: str) -> None:
    with pytest.raises(TileError, match="is no") as found:
        parse_values(text)
    assert "M=16:4096:x2" in str(found.value)


def test_files(tmp_path: Path) -> None:
    table, listed = tmp_path / "shapes.csv", tmp_path / "shapes.json"
    table.write_text('# decode\nM, N,dtype\n16,4096,float16\n\n32,"8192",\n# the end\n')
    assert read_shapes(table) == [{"M": 16, "N": 4096, "dtype": "float16"}, {"M": 32, "N": 8192}]
    listed.write_text('[{"M": 16}, {"M": 32}]')
    assert read_shapes(listed) == [{"M": 16}, {"M": 32}]
    for path, text, message in (
        (table, "M,N\n16\n", "shape 1 has 1 values for 2 arguments"),
        (table, "16,32\n1,2\n", "the first line names the arguments"),
        (table, "M,M\n1,2\n", "each once"),
        (table, "M\n", "has no shapes"),
        (table, "", "has no shapes"),
        (listed, "[]", "has no shapes"),
        (listed, '{"M": 16}', "is no list of objects"),
        (listed, "[NaN]", "is not JSON"),
        (listed, '[{"M": 1, "M": 2}]', "a shape has M twice"),
        (table, 'M,N\n16,"32\n', "is not CSV: unexpected end of data"),
        (table, "M;N\n16;32\n", "each once, as in M,N; it is 'M;N'"),
    ):
        path.write_text(text)
        with pytest.raises(TileError, match=message):
            read_shapes(path)
    upper = listed.rename(tmp_path / "SHAPES.JSON")
    upper.write_bytes(b'\xef\xbb\xbf[{"M": 16}]')
    assert read_shapes(upper) == [{"M": 16}]
    upper.write_bytes("M".encode("utf-16"))
    for path, message in (
        (tmp_path, "not a regular file"),
        (tmp_path / "no", "No such file or directory$"),
        (upper, "it is not UTF-8"),
    ):
        with pytest.raises(TileError, match=f"cannot be read: {message}"):
            read_shapes(path)


def test_products() -> None:
    shapes = [{"N": 1}, {"N": 2}]
    assert product(shapes, {"M": [3, 4]}) == [{"N": n, "M": m} for n in (1, 2) for m in (3, 4)]
    assert product([], {"M": [3, 3]}) == [{"M": 3}] and product(shapes, {}) == shapes
    with pytest.raises(TileError, match="N comes both"):
        product(shapes, {"N": [1]})
