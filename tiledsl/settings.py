"""Settings: one dataclass, read from TILEDSL_* variables when used, overridable per call and in a `with` block."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from tiledsl import tracebacks
from tiledsl.errors import TileError, meant

PREFIX = "TILEDSL_"
MISSES = "*.csv"

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def _boolean(value: object) -> bool:
    if isinstance(value, str):
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
    elif isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError


def _count(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError


def _folder(value: object) -> Path:
    if isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    raise ValueError


def _folder_or_none(value: object) -> Path | None:
    return None if value is None or value == "" else _folder(value)


def _folders(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [each for each in value.split(os.pathsep) if each]
    if isinstance(value, Path):
        value = [value]
    if isinstance(value, list | tuple):
        return tuple(map(_folder, value))
    raise ValueError


def _matching(pattern: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError

    return parse


def _user_cache() -> Path:
    if sys.platform == "linux":  # as platformdirs says; to import that takes as long as to recall a kernel
        return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache"), "tiledsl")
    from platformdirs import user_cache_path

    return user_cache_path("tiledsl", appauthor=False)


def _setting(default: Any, parse: Callable[[object], object], allowed: str, meaning: str) -> Any:
    """A field with its parser (ValueError if the value is not allowed), and the texts for errors and docs/settings.md.
    default: its value, or a function that finds it."""
    about = {"parse": parse, "allowed": allowed, "meaning": meaning}
    return (
        field(default_factory=default, metadata=about) if callable(default) else field(default=default, metadata=about)
    )


_TARGETS = "auto, interpret, cuda, cuda:NN or hip:gfxNNN"
_PRINT_AFTER = "all, changed, the name of a pass, or nothing"
_RANGES = "nvtx, proton, or nothing"
_LOG_LEVELS = "debug, info, warning or error"


@dataclass(frozen=True)
class Settings:
    """The values in force for one call. `current()` makes one; every field is checked on construction."""

    target: str = _setting(
        "auto", _matching(r"auto|interpret|cuda(:\d+)?|hip:gfx[0-9a-f]+"), _TARGETS,
        f"What kernels are compiled for unless a call names a target: {_TARGETS}",
    )  # fmt: skip
    cache_dir: Path = _setting(_user_cache, _folder, "a folder", "Where compiled kernels and tuning results are stored")
    verify_each: bool = _setting(True, _boolean, "1 or 0", "Run the IR verifier after every pass")
    print_after: str = _setting(
        "", _matching(r"|[a-z][a-z0-9]*(-[a-z0-9]+)*"), _PRINT_AFTER, f"Print the IR after these passes: {_PRINT_AFTER}"
    )
    dump_dir: Path | None = _setting(
        None, _folder_or_none, "a folder, or nothing", "Write the IR after every pass to this folder"
    )
    always_tune: bool = _setting(False, _boolean, "1 or 0", "Tune again even if there is a cached result")
    strict_versions: bool = _setting(
        True, _boolean, "1 or 0", "Tune again after a change of tiledsl, Triton or the driver; 0: only warn"
    )
    jobs: int = _setting(
        0, _count, "a whole number, 0 for all cores", "Number of compilation processes; 0 for all cores"
    )
    log_level: str = _setting(
        "warning", _matching("debug|info|warning|error"), _LOG_LEVELS,
        f"The lowest level that the logger `tiledsl` shows: {_LOG_LEVELS}",
    )  # fmt: skip
    tuned_configs: tuple[Path, ...] = _setting(
        (), _folders, f"folders, with {os.pathsep!r} between them",
        f"Folders of tuned-config files that autotuned functions look into, with `{os.pathsep}` between them; in "
        "`FOLDER/*.csv`, the calls that they do not serve are collected",
    )  # fmt: skip
    ranges: str = _setting(
        "", _matching("|nvtx|proton"), _RANGES,
        f"Ranges around calls of kernels, which name the kernel and its configuration in a profile: {_RANGES}",
    )  # fmt: skip
    full_tracebacks: bool = _setting(
        False, _boolean, "1 or 0", "Show all frames of a mistake's traceback; 0: those of the user's code"
    )

    def __post_init__(self) -> None:
        for name in _FIELDS:
            given = getattr(self, name)
            object.__setattr__(self, name, _checked(name, given, f"settings({name}={given!r})"))

    @property
    def tuned_folders(self) -> tuple[Path, ...]:
        """Of `tuned_configs`, the folders of files."""
        return tuple(each for each in self.tuned_configs if each.name != MISSES)

    @property
    def tuned_misses(self) -> Path | None:
        """Of `tuned_configs`, the folder in which calls are collected that no file serves."""
        return next((each.parent for each in self.tuned_configs if each.name == MISSES), None)

    @property
    def workers(self) -> int:
        """`jobs`, with 0 replaced by the number of cores that this process may use."""
        return self.jobs or len(os.sched_getaffinity(0))


_FIELDS = {setting.name: setting.metadata for setting in fields(Settings)}
# What the values depend on; the last ones decide where the user's cache folder is.
_VARIABLES = (*(PREFIX + name.upper() for name in _FIELDS), "XDG_CACHE_HOME", "HOME")
_OF_TESTS = f"{PREFIX}TEST_"
_warned: set[str] = set()  # variables, each once
_overrides: ContextVar[dict[str, object]] = ContextVar("tiledsl_settings", default={})  # noqa: B039  (never changed)


def current(**overrides: object) -> Settings:
    """The settings now: the environment, then the enclosing `with settings(...)`, then `overrides` that are not None.

    TileError if a name is unknown or a value is not allowed; the message names the variable or argument.
    """
    values = _overrides.get()
    if overrides:
        values = values | _named({name: value for name, value in overrides.items() if value is not None})
    found = _settings(tuple(values.items()), tuple(map(os.environ.get, _VARIABLES)))
    if found.log_level != _log_level:
        _set_log_level(found.log_level)
    return found


_log_level = "warning"  # the logger's now


def _set_log_level(level: str) -> None:
    global _log_level
    from tiledsl import logs  # which takes longer to import than all else here

    logs.apply(level)
    _log_level = level


def given_variables() -> dict[str, str]:
    """The environment's values of settings, by the settings' names."""
    return {name: os.environ[variable] for name, variable in zip(_FIELDS, _VARIABLES) if os.environ.get(variable)}


def wrong_variables() -> dict[str, str]:
    """What `current` says of each setting whose variable has a value that is not allowed."""
    wrong: dict[str, str] = {}
    for name, text in given_variables().items():
        try:
            _checked(name, text, f"{PREFIX}{name.upper()}={text}")
        except TileError as error:
            wrong[name] = error.message
    return wrong


def unknown_variables() -> dict[str, str]:
    """A sentence about each variable that looks like a setting's and is none's."""
    said = {}
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in _VARIABLES and not variable.startswith(_OF_TESTS):
            said[variable] = f"{variable} is not a setting; {meant(variable, _VARIABLES[: len(_FIELDS)])}"
    return said


def default(name: str) -> Any:
    """What a setting is where nothing says otherwise."""
    (setting,) = (each for each in fields(Settings) if each.name == name)
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


@lru_cache(maxsize=64)  # asked for at every call of a kernel
def _settings(overrides: tuple[tuple[str, object], ...], environment: tuple[str | None, ...]) -> Settings:
    values = dict(overrides)
    for name, variable, text in zip(_FIELDS, _VARIABLES, environment):
        if text and name not in values:
            values[name] = _checked(name, text, f"{variable}={text}")
    for variable, message in unknown_variables().items():
        if variable not in _warned:
            import logging

            _warned.add(variable)
            logging.getLogger("tiledsl").warning(message)
    return Settings(**values)  # type: ignore[arg-type]


@contextmanager
def override(**overrides: object) -> Iterator[Settings]:
    """Put `overrides` in force inside a `with` block, in this thread or task only. Blocks nest; the inner one wins."""
    token = _overrides.set(_overrides.get() | _named(overrides))
    try:
        yield current()
    finally:
        _overrides.reset(token)
        if "log_level" in overrides:
            with suppress(TileError):  # of a variable that is wrong; whoever asks for it is told
                current()


settings = override


def _full_tracebacks() -> bool:
    try:
        return current().full_tracebacks
    except TileError:  # of a variable that is wrong
        return False


tracebacks.shows_all = _full_tracebacks


def table() -> str:
    """The manual's table of settings, as Markdown."""
    rows = ["| setting | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in fields(Settings):
        default = setting.default
        if setting.default_factory is not MISSING:
            shown = "the user's cache folder"
        else:
            plain = int(default) if isinstance(default, bool) else default
            shown = "" if plain in ("", None, ()) else f"`{plain}`"
        meaning = setting.metadata["meaning"]
        rows.append(f"| `{setting.name}` | `{PREFIX}{setting.name.upper()}` | {shown} | {meaning} |")
    return "\n".join(rows)


def _named(overrides: dict[str, object]) -> dict[str, object]:
    for name, value in overrides.items():
        if name not in _FIELDS:
            raise TileError(f"settings: there is no setting {name!r}", notes=[meant(name, _FIELDS)])
        overrides[name] = _checked(name, value, f"settings({name}={value!r})")
    return overrides


def _checked(name: str, value: object, origin: str) -> object:
    try:
        return _FIELDS[name]["parse"](value)
    except ValueError:
        raise TileError(f"{origin} is not allowed; {name} is {_FIELDS[name]['allowed']}") from None


if __name__ == "__main__":
    print(table())
