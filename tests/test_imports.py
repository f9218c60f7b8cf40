"""What `import tiledsl` loads and costs, and that the packages on disk are those that are installed."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TOP = {"tiledsl": ROOT / "tiledsl", "tiledsl.passes": ROOT / "passes", "tiledsl.autotuner": ROOT / "autotune"}


def run_python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_import_loads_neither_torch_nor_triton() -> None:
    slow = ("torch", "triton", "numpy", "networkx", "joblib", "rich")
    shown = run_python("-c", f"import sys, tiledsl; print(*[m for m in {slow} if m in sys.modules])")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split() == []


def test_importing_the_language_and_the_tuner_loads_no_compiler() -> None:
    """Nor anything else that only tuning needs; see recalled.NOT_NEEDED."""
    from tests.autotune.recalled import not_needed

    code = """
import json, sys
import tiledsl.language as T
from tiledsl import autotune, jit
from tiledsl.autotuner import set_autotune_inputs
T.float16
print(json.dumps(sorted(sys.modules)))
"""
    shown = run_python("-c", code)
    assert shown.returncode == 0, shown.stderr
    loaded = set(json.loads(shown.stdout))
    assert not_needed(loaded) == [] and not loaded & {"torch", "triton", "numpy"}


def test_all_names_of_the_language_are_there() -> None:
    import tiledsl.language as T
    from tiledsl.language import names

    assert dir(T) == names.NAMES and all(getattr(T, name) is getattr(names, name) for name in names.NAMES)
    assert names.HIDDEN == [
        "__exp", "__exp10", "__log", "__log2", "__log10", "__sin", "__cos", "__tan", "__ffs", "__ldg"
    ]  # fmt: skip
    bound = [each for each in ast.parse(Path(str(names.__file__)).read_text()).body if isinstance(each, ast.ImportFrom)]
    taken = {f"{each.module}" for each in bound if each.names[0].name == "*"}
    stems = [path.stem for path in Path(str(names.__file__)).parent.glob("*.py") if path.stem != "__init__"]
    modules = {name: importlib.import_module(name) for name in map("tiledsl.language.{}".format, stems)}
    assert {name for name, module in modules.items() if hasattr(module, "__all__")} == taken
    listed = [name for each in taken for name in modules[each].__all__]
    assert len(listed) == len(set(listed)) > 180 and set(listed) < set(names.NAMES)


@pytest.mark.parametrize("module", ["tiledsl", "tiledsl.autotuner"])
def test_names_that_are_loaded_late_are_listed(module: str) -> None:
    """For completion, as in a notebook."""
    shown = run_python("-c", f"import {module} as m; print(sorted(set(m.__all__) - set(dir(m))), 'jit' in dir(m))")
    assert shown.stdout.strip() == f"[] {module == 'tiledsl'}", shown.stderr


def test_import_takes_less_than_150_ms() -> None:
    def milliseconds() -> float:
        shown = run_python("-X", "importtime", "-c", "import tiledsl")
        assert shown.returncode == 0, shown.stderr
        # import time:  self [us] | cumulative | name: the last line is tiledsl itself, what it loads included
        cumulative, name = shown.stderr.splitlines()[-1].split("|")[1:]
        assert name.strip() == "tiledsl"
        return int(cumulative) / 1000

    assert min(milliseconds() for _ in range(5)) < 150


@pytest.mark.parametrize(("bare", "full"), [("passes", "tiledsl.passes"), ("autotune", "tiledsl.autotuner")])
def test_the_bare_name_is_refused(bare: str, full: str) -> None:
    shown = run_python("-c", f"import {bare}")
    assert shown.returncode == 1
    assert f"ImportError: '{bare}' is not a package of its own: write `import {full}`" in shown.stderr
    assert run_python("-c", f"import {full}").returncode == 0


def test_pyproject_lists_the_packages_on_disk() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = set()
    for name, folder in TOP.items():
        files = [*folder.rglob("*.py"), *folder.rglob("*.lark"), *folder.rglob("*.tile")]
        for file in files:
            inner = file.parent.relative_to(folder).parts
            if name != "tiledsl" or not inner or f"tiledsl.{inner[0]}" not in TOP:
                packages.add(".".join([name, *inner]))
    assert sorted(packages) == sorted(listed)


def test_the_symlinks_are_there() -> None:
    for name, folder in TOP.items():
        assert ROOT.joinpath(*name.split(".")).resolve() == folder


def test_every_package_has_an_init() -> None:
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]:
        assert ROOT.joinpath(*name.split("."), "__init__.py").is_file(), name
