"""Triton source text as a Python module: written to the cache folder, then imported."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import linecache
import logging
import os
import shutil
import sys
import tempfile
import threading
import types
from pathlib import Path

from tiledsl.files import make_private, read_file, write_file

_log = logging.getLogger("tiledsl")
_modules: dict[tuple[str, str, bool], types.ModuleType] = {}
_lock = threading.Lock()
_private_folder: Path | None = None
_ENOUGH = 1 << 14  # bytes for a module


def load_module(
    name: str, text: str, interpret: bool, cache_dir: str | os.PathLike[str] | None = None
) -> types.ModuleType:
    """The module that `text` defines; the same text under the same name gives the same module object.

    The text lies in `<cache_dir>/modules/<first 16 digits of its SHA-256>/<name>.py`, for `triton.jit` and people read
    it from there. It is written to a temporary file and renamed, so processes may race. A folder that cannot be written
    is replaced by a private temporary one, with one warning. With `interpret`, `import triton` in the text finds the
    interpreting copy, and its kernels run on the CPU. Without `cache_dir` the setting of that name holds.
    """
    assert name.isidentifier(), name
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    key = (name, text, interpret)
    with _lock:
        if key not in _modules:
            path = _write(
                Path(cache_dir) if cache_dir is not None else _default_cache_dir(), digest, f"{name}.py", text
            )
            _modules[key] = _execute(
                f"_tiledsl_{'interpreted' if interpret else 'compiled'}_{digest}_{name}", path, text, interpret
            )
        return _modules[key]


def kept_file(name: str, text: str) -> Path:
    """A file of this name and text, where modules lie: the same one for the same name and text."""
    return _write(_default_cache_dir(), hashlib.sha256(text.encode()).hexdigest()[:16], name, text)


def _default_cache_dir() -> Path:
    settings = importlib.import_module("tiledsl.settings")
    return Path(settings.current().cache_dir)


def _write(cache_dir: Path, digest: str, name: str, text: str) -> Path:
    try:
        return _write_into(cache_dir.expanduser() / "modules" / digest, name, text)
    except OSError as error:
        return _write_into(_fallback(cache_dir, error) / digest, name, text)


@functools.lru_cache(maxsize=8)  # asked for every configuration
def writable_folder(cache_dir: Path) -> Path:
    """A cache folder for other processes to write modules into: this one, or the private one that takes its place."""
    folder = cache_dir.expanduser() / "modules"
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_ENOUGH))
    except OSError as error:
        return _fallback(cache_dir, error)
    return cache_dir


def _fallback(cache_dir: Path, error: OSError) -> Path:
    global _private_folder
    if _private_folder is None:
        _private_folder = Path(tempfile.mkdtemp(prefix="tiledsl-modules-"))
        atexit.register(shutil.rmtree, _private_folder, ignore_errors=True)
        _log.warning("cache folder %s cannot be written (%s); using %s", cache_dir, error, _private_folder)
    return _private_folder


def _write_into(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    data = text.encode()
    with contextlib.suppress(OSError, ValueError):
        if read_file(path, own=True) == data:
            return path.absolute()
    make_private(folder)
    write_file(path, data)
    return path.absolute()


def _execute(module_name: str, path: Path, text: str, interpret: bool) -> types.ModuleType:
    code = compile(text, str(path), "exec", dont_inherit=True)
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    if interpret:
        from tiledsl.runtime.interpreter import module_builtins

        module.__dict__["__builtins__"] = module_builtins()
    sys.modules[module_name] = module  # inspect and triton.jit look functions' modules up here
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))  # not what is there now
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
