"""Which modules and names of TileLang do not import under tiledsl's stand-in, and which of its language are unknown.

    python tests/conformance/names.py FOLDER

FOLDER is a copy of TileLang's repository. Its text is read, and nothing of it is run. The exit status is 0 if every
public module and name imports, and every public name of `tilelang.language` works or is refused with a reason.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def module_names(folder: Path) -> dict[str, Path]:
    """The files of the package `tilelang`, by the names of their modules, private ones left out."""
    found = {}
    for path in sorted((folder / "tilelang").rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = path
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """A module's statements, those in its conditions and `try` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(statement, part, []))


def public_names(tree: ast.Module) -> set[str]:
    """What a module defines, and what it takes from the package itself: names without an underscore before them."""
    names: set[str] = set()
    for each in _statements(tree.body):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(each.name)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(each, ast.ImportFrom) and (each.level or (each.module or "").startswith("tilelang")):
            names |= {alias.asname or alias.name for alias in each.names if alias.name != "*"}
    return {name for name in names if not name.startswith("_")}


def language_names(files: dict[str, Path], module: str = "tilelang.language") -> set[str]:
    """The names of a module's `__all__`: the strings of its lists of names, and of the modules that it takes all of."""
    names: set[str] = set()
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or name not in files:
            return
        seen.add(name)
        package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
        for each in ast.parse(files[name].read_text(encoding="utf-8")).body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                target = each.targets[0] if isinstance(each, ast.Assign) else each.target
                listed = getattr(target, "id", "")
                if listed == "__all__" or listed.endswith(("_ALL", "_EXPORTS", "_all_dtypes")):
                    strings = (part.value for part in ast.walk(each.value) if isinstance(part, ast.Constant))
                    names.update(text for text in strings if isinstance(text, str) and text.isidentifier())
            elif isinstance(each, ast.ImportFrom) and {alias.name for alias in each.names} & {"*", "__all__"}:
                parents = package.split(".")[: len(package.split(".")) - each.level + 1] if each.level else []
                visit(".".join([*parents, *filter(None, [each.module])]))

    visit(module)
    return names


def not_importable(files: dict[str, Path]) -> list[str]:
    """The modules and names that the stand-in does not have."""
    missing = []
    for name, path in files.items():
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
            continue
        for public in sorted(public_names(ast.parse(path.read_text(encoding="utf-8")))):
            try:
                exec(f"from {name} import {public}", {})
            except ImportError:
                missing.append(f"{name}.{public}")
    return missing


def unknown(names: Iterable[str]) -> list[str]:
    """Those of the language's names that neither work nor are refused."""
    language = importlib.import_module("tilelang.language")
    return sorted(name for name in names if not hasattr(language, name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a copy of TileLang's repository")
    folder = parser.parse_args().folder
    from tiledsl.compat import install
    from tiledsl.language.refused import Refused

    install()
    files = module_names(folder)
    if not files:
        print(f"{folder} has no folder tilelang", file=sys.stderr)
        return 2
    missing, names = not_importable(files), language_names(files)
    strangers = unknown(names)
    language = importlib.import_module("tilelang.language")
    refused = [name for name in names if isinstance(getattr(language, name, None), Refused)]
    for name in missing:
        print(f"does not import: {name}")
    for name in strangers:
        print(f"neither works nor is refused: T.{name}")
    works = len(names) - len(refused) - len(strangers)
    print(f"{len(files)} modules; modules and names that do not import: {len(missing)}")
    print(f"{len(names)} names of the language: {works} work, {len(refused)} are refused, {len(strangers)} are unknown")
    return 1 if missing or strangers else 0


if __name__ == "__main__":
    sys.exit(main())
