"""The additions of docs/extending.md, made in a copy of the repository: they work, in the places that the rows of
ARCHITECTURE.md's table name, and the house's own tests see nothing amiss."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
SECTIONS = {text.split("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
FOLDERS = ("autotune", "docs", "examples", "passes", "tests", "tiledsl")
# Those of the house's tests that a new name, record or pass is of interest to.
HOUSE = """
tests/test_imports.py::test_all_names_of_the_language_are_there tests/test_layers.py
tests/language/test_docstrings.py::test_a_function_says_what_it_takes[lerp]
tests/language/test_docstrings.py::test_a_wrong_argument_is_an_error_that_is_documented[erfc]
tests/language/test_docstrings.py::test_a_result_has_the_type_that_its_docstring_says
tests/language/test_docstring_examples.py::test_the_example_gives_what_it_says[lerp]
tests/language/test_docstring_examples.py::test_the_example_gives_what_it_says[erfc]
tests/dialects/test_math_functions.py::test_numpy_and_python_agree[erfc]
tests/dialects/test_math_functions.py::test_triton_has_it[erfc]
tests/dialects/test_math_functions.py::test_the_language_has_what_python_computes
tests/language/test_values.py::test_functions
tests/autotune/test_own_search.py tests/autotune/test_search.py::test_no_configuration_is_asked_for_twice_but_by_halving
tests/test_cli_json.py tests/passes/test_pipeline.py::test_the_table_of_passes_is_the_pipeline
"""


def blocks(text: str) -> list[tuple[str, str, str]]:
    """The path, the kind ("python" is a new file) and the text of every block."""
    made, path = [], ""
    for found in re.finditer(r"^\*\*`([^`\n]+)`\*\*$|^```(python|diff)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        path = found[1] or path
        if found[2]:
            made.append((path, found[2], found[3]))
    return made


def apply(diff: str, text: str, path: str = "") -> str:
    """The text of a file with the lines in place of those that the diff's other lines are."""
    lines = diff.splitlines(keepends=True)
    assert all(line[0] in " +-" for line in lines)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    count = ("\n" + text).count("\n" + before)
    assert count == 1, f"docs/extending.md patches {path}: bring its block up to date; {count} times there is\n{before}"
    return ("\n" + text).replace("\n" + before, "\n" + after)[1:]


def rows() -> dict[str, str]:
    """ARCHITECTURE.md's table: what to add, and where."""
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE)
    return dict(lines)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_table_names_the_files(name: str) -> None:
    files = {path for path, _, _ in blocks(SECTIONS[name])}
    places = re.findall(r"[\w/<>.]+\.(?:py|md)", rows()[name])
    patterns = ["(.+/)?" + re.sub(r"<\w+>", r"\\w+", re.sub(r"\.", r"\\.", place)) for place in places]
    tests = {path for path in files if path.startswith("tests/")}
    assert len(tests) == 1 and 1 <= len(files - tests) <= 3
    for path in files - tests:
        assert any(re.fullmatch(each, path) for each in patterns), f"{path} is in none of {places}"


def test_a_change_must_have_one_place() -> None:
    assert apply(" b\n+c\n", "a\nb\n") == "a\nb\nc\n" and apply("-b\n+c\n", "a\nb\n") == "a\nc\n"
    for text in ("a\n", "b\na\nb\n", "ab\n"):
        with pytest.raises(AssertionError, match=r"patches f: bring its block up to date; [02] times there is"):
            apply(" b\n+c\n", text, "f")


@pytest.mark.slow
def test_the_additions_work(tmp_path: Path, parse_table: Path) -> None:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    for file in (*ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy2(file, tmp_path)
    written = []
    for path, kind, text in blocks(PAGE):
        file = tmp_path / path
        if kind == "python":
            assert not file.exists()
            file.write_text(text, encoding="utf-8")
            written += [path] if path.startswith("tests/") else []
        else:
            file.write_text(apply(text, file.read_text(encoding="utf-8"), path), encoding="utf-8")
    assert len(written) == len(SECTIONS) == 5
    done = forked.run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *written, *HOUSE.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
