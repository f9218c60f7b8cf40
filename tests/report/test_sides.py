"""Texts side by side."""

from __future__ import annotations

from pathlib import Path

from tiledsl.report.sides import Line, Place, Quoted, Row, lines_of, quoted, side_by_side


def lines(text: str) -> list[Line]:
    return [Line(each) for each in text]


def test_lines_that_differ_stand_side_by_side() -> None:
    rows = side_by_side(lines("abcdefghij"), lines("abcdXYfghij"), context=1)
    d, e, f, x, y = lines("defXY")
    assert rows == [Row("gap"), Row("same", d, d), Row("changed", e, x), Row("changed", None, y), Row("same", f, f), Row("gap")]  # fmt: skip # noqa: E501
    assert side_by_side(lines("ab"), lines("a"), 1) == [Row("same", *lines("aa")), Row("changed", Line("b"))]
    assert side_by_side([], lines("a")) == [Row("changed", None, Line("a"))]


def test_equal_texts_have_no_rows_whatever_their_places() -> None:
    places = [Line(each, Place("file.py", 3, 3)) for each in "abc"]
    assert side_by_side(lines("abc"), places) == [] and side_by_side([], []) == []


def test_places_are_read_from_the_ends_of_lines() -> None:
    text = '%a = x.y : int32 loc("a \\"b\\" (1).py" 12 5 13 9)\n  "loc(\\"c\\" 1 2 3 4)"\n}'
    first = Line("%a = x.y : int32", Place('a "b" (1).py', 12, 13))
    assert lines_of(text) == [first, Line('  "loc(\\"c\\" 1 2 3 4)"'), Line("}")]


def test_quotes_have_what_lies_around_and_say_what_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("one\ntwo\nthree\nfour\nfive\nsix\n\n")
    asked = [Line("", Place(str(file), 1, 1)), Line("", Place(str(file), 6, 6)), Line("", Place("/not/here.py", 1, 1))]
    assert quoted(asked, around=1) == {
        "program.py": [Quoted(1, "one"), Quoted(2, "two"), Quoted(None), Quoted(5, "five"), Quoted(6, "six")]
    }
