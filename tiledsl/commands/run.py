"""`tiledsl run`: run a script written for TileLang, unchanged."""

from __future__ import annotations

import contextlib
import linecache
import sys
import tokenize
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tiledsl.compat import cpu_device, install
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target


def run_script(
    path: Path,
    arguments: Sequence[str] = (),
    text: str | None = None,
    entry: str | None = None,
    stand_in: bool = True,
) -> int:
    """Run a script as `python path arguments...` would, with `tilelang` and, without a GPU, "cuda" standing in.

    `text` is run in place of the file's content. With `entry` the script is only imported, and this Python text is run
    in its namespace. Without `stand_in` it finds the TileLang that is installed. Returns the exit status; errors are
    printed to stderr, a TileError without traceback.
    """
    if not path.is_file():
        raise TileError(f"there is no script {path}")
    if stand_in:
        install()
    source = _read(path) if text is None else text
    if text is not None:  # inspect.getsource and tracebacks read the script here
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    emulation = cpu_device.emulate() if Target.parse("auto").kind == "interpret" else contextlib.nullcontext()
    name = "__main__" if entry is None else path.stem
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = __builtins__
    saved = sys.argv, sys.path[0], sys.modules.get(name)
    sys.argv, sys.path[0], sys.modules[name] = [str(path), *arguments], str(path.parent.resolve()), module
    try:
        with emulation:
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
            if entry is not None:
                exec(compile(entry, "<entry>", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as stop:
        return _status(stop)
    except TileError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this one
        traceback.print_exception(type(error), error, frames, file=sys.stderr)
        return 1
    finally:
        sys.stdout.flush()
        sys.argv, sys.path[0] = saved[:2]
        if saved[2] is not None:
            sys.modules[name] = saved[2]
    return 0


def _read(path: Path) -> str:
    """A script's text, in the encoding that it names, UTF-8 by default."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise TileError(f"{path} cannot be read: {error}") from None


def _status(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return int(stop.code or 0)
    print(stop.code, file=sys.stderr)
    return 1
