"""What is changed in a file, how mutants are drawn, and how reviewed survivors are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import warm
from tests.mutants.__main__ import (
    DIGESTS,
    EQUIVALENT,
    Look,
    _changed_files,
    moved_lines,
    printed_mutants,
    read_equivalent,
)
from tests.mutants.mutations import Mutant, compiles, mutants_of, sample, strata
from tests.mutants.verdicts import Verdicts
from tests.mutants.warm import ROOT

SOURCE = b'''"""Text."""
LIMIT = 4


def clamp(x: int, low: int = 0, *, fast: bool = False) -> bool:
    """Not changed."""
    if not x < low and fast:
        raise ValueError(f"{x + 1} is too small")
    log.info("%d", x + 1)
    found.append(min(x, LIMIT - 1))
    return other(x, low, fast=True) or x == 3
'''


def changes(source: bytes = SOURCE) -> set[tuple[str, str]]:
    return {(each.before, each.after) for each in mutants_of("file.py", source)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 4", "LIMIT = 5"),
        ("LIMIT = 4", "LIMIT = 3"),
        ("if not x < low and fast:", "if x < low and fast:"),
        ("if not x < low and fast:", "if not x <= low and fast:"),
        ("if not x < low and fast:", "if not x < low or fast:"),
        ("if not x < low and fast:", "if fast:"),
        ("if not x < low and fast:", "if not x < low:"),
        ("if not x < low and fast:", "if not (not x < low and fast):"),
        ('raise ValueError(f"{x + 1} is too small")', "pass"),
        ("found.append(min(x, LIMIT - 1))", "pass"),
        ("found.append(min(x, LIMIT - 1))", "found.append(max(x, LIMIT - 1))"),
        ("found.append(min(x, LIMIT - 1))", "found.append(min(x, LIMIT + 1))"),
        ("return other(x, low, fast=True) or x == 3", "return other(low, x, fast=True) or x == 3"),
        ("return other(x, low, fast=True) or x == 3", "return other(x, low) or x == 3"),
        ("return other(x, low, fast=True) or x == 3", "return other(x, low, fast=False) or x == 3"),
        ("return other(x, low, fast=True) or x == 3", "return not (other(x, low, fast=True) or x == 3)"),
        ("return other(x, low, fast=True) or x == 3", "return other(x, low, fast=True) or x != 3"),
    ],
)
def test_a_change(before: str, after: str) -> None:
    assert (before, after) in changes()


def test_a_constant_is_run_by_what_reads_it() -> None:
    found = {each.before: set(each.covered_by) for each in mutants_of("file.py", SOURCE + b"UNREAD = 7\n")}
    assert found["LIMIT = 4"] == {10}
    assert found["UNREAD = 7"] == set(range(1, 13))


def test_fields_are_run_by_the_methods_of_their_class() -> None:
    fields = (
        b"class Data:\n    size: int = 7\n\n\nclass Box:\n    width: int = 9\n\n    def area(self):\n        return 1\n"
    )
    found = {each.before: set(each.covered_by) for each in mutants_of("file.py", SOURCE + fields)}
    assert found["width: int = 9"] == {17, 18, 19, 20}
    assert found["size: int = 7"] == set(range(1, 21))


def test_what_may_come_in_any_order_stays_in_order() -> None:
    source = b"def f(x, a, b):\n    found = of_kinds(x, AddOp, tile.LoadOp)\n    return gcd(a, b)\n"
    swapped = {after for _, after in changes(source)}
    assert "found = of_kinds(AddOp, x, tile.LoadOp)" in swapped
    assert not swapped & {"found = of_kinds(x, tile.LoadOp, AddOp)", "return gcd(b, a)"}
    compared = b"def f(a, b):\n    return CmpOp(a, b, predicate='%b')\n"
    assert [any("(b, a" in after for _, after in changes(compared % each)) for each in (b"eq", b"ne", b"lt")] == [
        False,
        False,
        True,
    ]


def test_texts_and_messages_stay() -> None:
    assert not any("log.info" in before or "Text" in before or "Not changed" in before for before, _ in changes())
    assert [after for before, after in changes() if before.startswith("raise")] == ["pass"]


def test_the_same_mutants_for_the_same_seed_whatever_stands_elsewhere() -> None:
    def drawn(source: bytes, seed: int) -> list[tuple[str, str, str, str]]:
        folders = strata(mutants_of("file.py", source), lambda file: "all")
        return [each.key for each in sample(folders, 5, seed, {"file.py": source})]

    assert drawn(SOURCE, 1) == drawn(SOURCE, 1) != drawn(SOURCE, 2)
    assert drawn(b"# A comment more.\n" + SOURCE, 1) == drawn(SOURCE, 1)


def test_every_mutant_of_the_sample_is_python_and_another_program() -> None:
    for mutant in mutants_of("file.py", SOURCE):
        assert compiles(mutant, SOURCE), mutant
    assert not compiles(Mutant("file.py", "", 0, 0, b"(", range(1)), SOURCE)
    assert not compiles(Mutant("file.py", "", 0, 0, b"# the same program\n", range(1)), SOURCE)


def test_reviewed_survivors(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.txt"
    file.write_text(
        "# Head.\n\na.py: f\n- x < 1\n+ x <= 1\nx is\nnever 1.\n\nb.py:\n- A = 1\n+ A = 2\nNobody reads A.\n"
    )
    assert read_equivalent(file) == {
        ("a.py", "f", "x < 1", "x <= 1"): "x is never 1.",
        ("b.py", "", "A = 1", "A = 2"): "Nobody reads A.",
    }
    file.write_text("a.py: f\n- x < 1\n+ x <= 1\n")
    with pytest.raises(AssertionError, match="not a block"):
        read_equivalent(file)
    file.write_text("a.py: f\n- x = 1\n+ x = 2\nit is lost\nb.py: g\n- y = 1\n+ y = 2\nas is this one\n")
    with pytest.raises(AssertionError, match="not a block"):
        read_equivalent(file)


def test_survivors_of_an_earlier_run_are_read_from_its_output() -> None:
    printed = """   1.0 s  tests/test_x.py
a.py:3: f
- x < 1
+ x <= 1
  survived 3 tests

b.py:9: C.m
- A = 1
+ A = 2
  no test runs this line

c.py:1: g
- y
+ z
  killed by tests/test_x.py::test_y
"""
    assert printed_mutants(printed) == {("a.py", "f", "x < 1", "x <= 1"), ("b.py", "C.m", "A = 1", "A = 2")}


def test_verdicts_hold_until_the_function_or_the_tests_change(tmp_path: Path) -> None:
    source = "def f(x):\n    return x < 1\n\n\ndef g(x):\n    return x + 1\n"
    (tmp_path / "a.py").write_text(source)
    (tmp_path / "test_a.py").write_text("def test_f(): ...\n")
    in_f, in_g = (next(each for each in mutants_of("a.py", source.encode()) if each.function == name) for name in "fg")
    first, second = "test_a.py::test_f", "test_a.py::test_g"
    verdicts = Verdicts(tmp_path / "verdicts", tmp_path)
    verdicts.keep(in_f, [first], "")
    verdicts.keep(in_g, [first, second], second)
    verdicts.keep_steady([second])

    kept = Verdicts(tmp_path / "verdicts", tmp_path)
    assert (kept.of(in_f, [first]), kept.of(in_g, [second])) == ("", second)
    assert (kept.of(in_f, [first, second]), kept.of(in_g, [first])) == (None, None)
    assert kept.of(in_g, [first], {second}) == second
    assert kept.not_steady([first, second]) == {first}
    kept.keep(in_g, [first], "time limit in test_a.py::test_f")
    assert Verdicts(tmp_path / "verdicts", tmp_path).of(in_g, []) == "time limit in test_a.py::test_f"

    (tmp_path / "a.py").write_text("# Moved.\n" + source.replace("x < 1", "x < 2"))
    assert kept.of(in_f, [first]) is None
    assert kept.of(in_g, [first]) == "time limit in test_a.py::test_f"
    (tmp_path / "a.py").write_text(source)
    (tmp_path / "test_a.py").write_text("def test_f(): assert f(0)\n")
    kept = Verdicts(tmp_path / "verdicts", tmp_path)
    assert kept.of(in_f, [first]) is None
    assert kept.not_steady([second]) == {second}


def test_changed_lines_count_as_run_where_what_was_there_or_is_around_them_is() -> None:
    old = ["def f(x):", "    a(x)", "    return x"]
    lines = lambda bits: [line for line in range(6) if bits >> line & 1]
    inserted = moved_lines(old, ["def f(x):", "    if x:", "        return 1", *old[1:]])
    assert [lines(each) for each in inserted] == [[1], [1, 2], [1, 2], [2], [3]]
    replaced = moved_lines(old, ["def f(x):", "    return x + 1"])
    assert [lines(each) for each in replaced] == [[1], [1, 2, 3, 4]]
    assert moved_lines(old, old[1:]) == [1 << 2, 1 << 3]


def test_the_reviewed_survivors_are_mutants_of_the_present_code() -> None:
    reviewed = read_equivalent(EQUIVALENT)
    files = {file for file, *_ in reviewed}
    assert files <= set(_changed_files())
    assert reviewed.keys() <= {mutant.key for file in files for mutant in mutants_of(file, (ROOT / file).read_bytes())}


def test_a_longer_look_takes_the_tests_that_the_first_had_no_time_for() -> None:
    tests = [warm.Test(f"test_{number}.py::test", 4.0) for number in range(6)]
    digest = warm.Test(f"{DIGESTS}test_it.py::test", 1.5)
    assert Look(8).choose([*tests, digest], set()) == [*tests[:2], digest]
    assert Look(12, 8).choose([*tests, digest], set()) == tests[2:5]
    assert Look(8).choose(tests, {tests[0].name}) == tests[1:3]
    assert Look(100, 8).choose([*tests, digest], {tests[0].name}) == tests[3:]
