"""Passes of users: where they stand in the pipeline, and the texts that stand for them in keys, files and processes.

`passes={"after:promote-buffers": [MyPass(factor=2)]}` becomes the pass option "after:promote-buffers" with the value
["my-pass{factor=2}#1f0c..."]. What is behind # comes from the code, so that whatever depends on options of passes
depends on it: kernels in memory, results on disk, files of tuned configurations.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from tiledsl.digests import OPAQUE, digest
from tiledsl.errors import TileError, meant
from tiledsl.ir.pass_manager import PASSES, Pass, is_ours
from tiledsl.passes.specs import find_pass, parse_pipeline

PLACES = ("after:", "before:")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TAKEN = ("all", "changed", "elaborate", "tile", "emit")  # they mean something where passes are named
_TEXT = re.compile(r"(.*)#(\w+:?\w*)", re.DOTALL)
_EXAMPLE = 'passes={"after:promote-buffers": [MyPass()]}'

_identities: WeakKeyDictionary[type[Pass], str] = WeakKeyDictionary()
_by_identity: dict[str, type[Pass]] = {}
_numbers = itertools.count(1)


def is_place(option: object) -> bool:
    """Whether an option of passes says what passes come where."""
    return isinstance(option, str) and option.startswith(PLACES)


def normalised(options: Mapping[str, Any], passes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options of passes with `passes`, {"after:pass-name": passes}, among them, each pass as its text.

    A pass is a Pass or a text such as "my-pass{factor=2}". Raises TileError for other things, for places that are none,
    and for passes whose text would not say all of them.
    """
    if passes is not None and not isinstance(passes, Mapping):
        raise TileError(f"passes is {passes!r}; it must be a dict such as {_EXAMPLE}")
    for place in passes or {}:
        if not is_place(place):
            raise TileError(
                f"passes: {place!r} is no place in the pipeline", notes=[f"write after:NAME or before:NAME: {_EXAMPLE}"]
            )
    merged = {**options, **(passes or {})}
    return {key: [*_texts(key, value)] if is_place(key) else value for key, value in merged.items()}


def inserted(pipeline: Sequence[Pass], options: Mapping[str, Any]) -> list[Pass]:
    """The pipeline with the passes that `options` names at places of it, in their order: after the last run of a pass,
    before the first one of it. A place may name a pass that an earlier one has put there. TileError for a place that
    there is not."""
    passes = list(pipeline)
    for place, value in options.items():
        if not is_place(place):
            continue
        where, _, name = place.partition(":")
        names = [each.name for each in passes]
        if name not in names and not (where == "after" and name == "elaborate"):
            raise TileError(
                f"{place!r}: the pipeline has no pass {name!r}; {meant(name, names, 'it has')}", code="no-such-pass"
            )
        if name == "elaborate":
            at = 0
        else:
            at = names.index(name) if where == "before" else len(names) - names[::-1].index(name)
        passes[at:at] = [each for text in _texts(place, value) for each in _parsed(text)]
    return passes


def types_in(options: Mapping[str, Any]) -> dict[str, type[Pass]]:
    """The classes of users' passes among the options, by what stands for their code: what another process needs."""
    texts = [text for key, value in options.items() if is_place(key) for text in _texts(key, value)]
    return {identity(type(each)): type(each) for text in texts for each in _parsed(text) if not is_ours(type(each))}


def register(types: Mapping[str, type[Pass]]) -> None:
    """Let texts mean these classes, which another process has sent."""
    for text, pass_type in types.items():
        _by_identity[text] = pass_type
        _identities[pass_type] = text


def identity(pass_type: type[Pass]) -> str:
    """A text for the code of a user's pass: 16 digits from the text of its module and of the user's modules that are
    named there; "opaque:" and a number where the code cannot be known, which the log says once."""
    text = _identities.get(pass_type)
    if text is None:
        text = _identities[pass_type] = _identity(pass_type)
        _by_identity[text] = pass_type
    return text


def _identity(pass_type: type[Pass]) -> str:
    module = sys.modules.get(pass_type.__module__)
    reason = ""
    if "<locals>" in pass_type.__qualname__:
        reason = "is defined inside of a function"
    elif module is None or _file(module) is None:
        reason = "is not defined in a file"
    else:
        try:
            texts = [path.read_bytes().replace(b"\r\n", b"\n") for path in _files(module)]
        except OSError as error:
            reason = f"is defined in a file that cannot be read ({error.strerror})"
        else:
            return digest(f"{pass_type.__qualname__} {sorted(map(digest, texts))}")[:16]
    logging.getLogger("tiledsl").warning(
        f"the pass {pass_type.name} {reason}: its code cannot be told from other code, so nothing that it has part in "
        "is kept for other processes; move it to the top of a file"
    )
    return f"{OPAQUE}{next(_numbers)}"


def _files(module: ModuleType) -> set[Path]:
    """The file of a module and, of the user's modules, of those that it has names from, and so on."""
    root = module.__name__.partition(".")[0]
    files: dict[str, Path] = {}
    pending = [module]
    while pending:
        current = pending.pop()
        path = _file(current)
        if current.__name__ in files or path is None:
            continue
        files[current.__name__] = path
        for value in list(vars(current).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and _is_users(other, root):
                pending.append(other)
    return set(files.values())


def _file(module: ModuleType) -> Path | None:
    path = getattr(module, "__file__", None)
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None


def _is_users(module: ModuleType, root: str) -> bool:
    """Whether a module's code may change with the pass: that of a library has a version of its own."""
    name, path = module.__name__.partition(".")[0], _file(module)
    if path is None or name in sys.stdlib_module_names or name in ("tiledsl", "torch", "triton", "numpy"):
        return False
    libraries = [Path(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib")]
    return name == root or not any(path.is_relative_to(each) for each in libraries)


def _texts(place: str, value: Any) -> Iterable[str]:
    """The passes at a place as texts."""
    if isinstance(value, (Pass, str)) or (isinstance(value, type) and issubclass(value, Pass)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TileError(f"passes: {place!r} has {value!r}; it must be a list of passes: {_EXAMPLE}")
    for item in value:
        if isinstance(item, str):
            yield from map(_text, _parsed(item))
        elif isinstance(item, Pass):
            yield _text(item)
        elif isinstance(item, type) and issubclass(item, Pass):
            raise TileError(f"passes: {place!r} has the class {item.__name__}; write {item.__name__}()")
        else:
            way_out = "write an object such as MyPass(), or a text such as 'my-pass{factor=2}'"
            raise TileError(f"passes: {place!r} has {item!r}, which is no pass", notes=[way_out])


def _text(user_pass: Pass) -> str:
    """A pass as text. TileError where it would not be that pass again."""
    pass_type = type(user_pass)
    if is_ours(pass_type):
        return user_pass.spec
    where = f"{pass_type.__module__}.{pass_type.__qualname__}"
    if not _NAME.fullmatch(user_pass.name) or user_pass.name in _TAKEN:
        way_out = 'passes are named in small letters with hyphens: name = "my-pass"'
        raise TileError(f"{where} is named {user_pass.name!r}", notes=[way_out])
    if is_ours(find_pass(user_pass.name) or pass_type):
        raise TileError(f"{where} is named {user_pass.name!r}, as a pass of tiledsl's is; give it another name")
    try:
        again = parse_pipeline(user_pass.spec, {user_pass.name: pass_type})
    except (TileError, TypeError):
        again = []
    if again != [user_pass] or set(vars(user_pass)) - {"spec"} != {field.name for field in fields(user_pass)}:
        raise TileError(
            f"{where}: its options are not fields with numbers, texts or truth values: {user_pass!r}",
            notes=["a pass is a frozen dataclass; what it does depends on its code and on its fields alone"],
        )
    return f"{user_pass.spec}#{identity(pass_type)}"


def _parsed(text: str) -> list[Pass]:
    """The passes that a text names: those of `_text`, with the code that it says, and what `parse_pipeline` takes."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return parse_pipeline(text)
    spec, wanted = found.groups()
    name = spec.partition("{")[0]
    pass_type = _by_identity.get(wanted)
    if pass_type is None:
        here = find_pass(name)
        if here is None or is_ours(here):
            raise TileError(
                f"no pass is named {name!r} in this process",
                notes=["import the module that defines it, or name its file: --load FILE"],
            )
        if identity(here) != wanted:
            raise TileError(
                f"the pass {name!r} has changed: its code is {identity(here)}, and {text!r} names other code"
            )
        pass_type = here
    return parse_pipeline(spec, {name: pass_type})


def own_passes() -> dict[str, type[Pass]]:
    """The users' passes of this process, by name."""
    return {name: each for name, each in PASSES.items() if not is_ours(each)}
