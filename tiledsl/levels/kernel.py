"""Levels of kernels of tile programs: saved, and read to stand in for the source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.codegen.emitted import EmittedKernel
from tiledsl.codegen.names import quoted
from tiledsl.digests import digest, source_digest
from tiledsl.errors import TileError
from tiledsl.levels import metadata
from tiledsl.levels.artifact import Artifact, artifact
from tiledsl.levels.bundle import LevelFile, check_level, folder_path, is_content, open_level, record_of, save
from tiledsl.levels.checks import check_allow
from tiledsl.levels.record import Argument, Record, arguments_of, encoded
from tiledsl.runtime import kernel_files

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel


def attaching(artifacts: Mapping[str, Artifact]) -> str:
    """The end of a module whose kernels run from files."""
    lines = ["", "", "from tiledsl.levels.artifact import attach_file", ""]
    for name, each in artifacts.items():
        path, key = each.store()
        given = "" if each.file.path is None else str(each.file.path)
        texts = ", ".join(map(quoted, (str(path), key, str(each.target), given)))
        lines.append(f"attach_file({name}, {texts})")
    return "\n".join(lines) + "\n"


def save_levels(kernel: Kernel, folder: str | os.PathLike[str]) -> list[Path]:
    """See Kernel.save_levels."""
    written, where = [], folder_path(folder)
    compiled, source = kernel.compiled, source_digest((kernel.origin or kernel).source)
    artifacts = kernel.artifacts
    for emitted in kernel.module.kernels:
        compiled_kernel = compiled[emitted.name]
        if emitted.name in artifacts:
            record = artifacts[emitted.name].record
            arguments, language = record.arguments or (), record.language
        else:
            arguments, language = compiled_for(compiled_kernel.triton.src)
        written += save(where, emitted.name, compiled_kernel, arguments, language, source)
    return written


def artifacts_of(origin: Kernel, level: str, files: Any, allow: Collection[str]) -> dict[str, Artifact]:
    """What files of a level give for kernels of a program, by the kernels' names; see Kernel.from_level."""
    check_level(level)
    waived = check_allow(allow)
    names = [each.name for each in origin.module.kernels]
    if not isinstance(files, Mapping):
        files = _by_name(origin, level, files, names)
    unknown = [name for name in files if name not in names]
    if unknown:
        raise TileError(f"{origin.name} has no kernel {unknown[0]!r}", notes=[f"it has {', '.join(names)}"])
    if not files:
        raise TileError(f"{origin.name}: no {level} is given", notes=[f"its kernels are {', '.join(names)}"])
    return {name: _artifact(origin, level, name, where, waived) for name, where in files.items()}


def _by_name(kernel: Kernel, level: str, files: Any, names: list[str]) -> dict[str, Any]:
    """A level for each kernel: a folder has all of them, a text or a file is for the only one."""
    if isinstance(files, (str, os.PathLike)) and not is_content(files) and os.path.isdir(files):
        return dict.fromkeys(names, files)
    if len(names) == 1:
        return {names[0]: files}
    raise TileError(
        f"{kernel.name} has {len(names)} kernels ({', '.join(names)}), and one {level} is given",
        notes=[f"give a folder with {names[0]}.{level} and so on, or a dict: {{{names[0]!r}: ...}}"],
    )


def _artifact(origin: Kernel, level: str, name: str, given: Any, allow: Collection[str]) -> Artifact:
    emitted = next(each for each in origin.module.kernels if each.name == name)
    file = open_level(level, given, name)
    result = artifact(
        name, file, origin.target, allow,
        lambda: _own_record(origin, emitted),
        lambda file, record, allow: _check_origin(origin, file, record, allow),
    )  # fmt: skip
    _check_arguments(origin, emitted, result)
    return result


def compiled_for(source: Any) -> tuple[tuple[Argument, ...], str]:
    """The arguments, and the language ("triton", "gluon"), of an ASTSource of Triton's."""
    found = arguments_of(list(source.fn.arg_names), source.signature, source.constants, source.attrs)
    return found, str(source.language.name).lower()


def _own_record(origin: Kernel, emitted: EmittedKernel) -> Record:
    """The record of a level that has no JSON file: what this kernel is when it is compiled from its source."""
    compiled = origin.compiled[emitted.name]
    files = kernel_files.contents(compiled)
    return record_of(compiled, files, *compiled_for(compiled.triton.src), source_digest(origin.source))


def _check_origin(origin: Kernel, file: LevelFile, record: Record | None, allow: Collection[str]) -> list[str]:
    """Whether a level was compiled from the kernel's own source: tile sizes and such stand in it as constants."""
    if record is not None and record.source:
        same: bool | None = record.source == source_digest(origin.source)
    else:
        folders = metadata.read(file.level, file.content).sources
        same = digest(origin.source)[:16] in folders if folders else None
    if same:
        return []
    if same is None:
        return [f"{file.what} does not say what it was compiled from; its constants are taken to be {origin.name}'s"]
    if "source" in allow:
        return [f"{file.what} was compiled from another source than {origin.name}'s"]
    raise TileError(
        f"{file.what} was compiled from another source than {origin.name}'s, perhaps with other tiles",
        notes=[
            "save_levels() of the same program, values and pass_configs writes what fits",
            "if you know that arguments, grid and outputs are the same: allow=['source']",
        ],
    )


def _check_arguments(origin: Kernel, emitted: EmittedKernel, artifact: Artifact) -> None:
    """Whether the artifact takes what the host function gives. What it takes for granted is checked at each launch."""
    if artifact.record.arguments is None:
        raise TileError(
            f"the JSON file beside {artifact.file.what} does not say what arguments it was compiled for",
            notes=["that of save_levels() does; Triton's own, in its cache, does not"],
        )
    constants = {name: Argument(name, "constexpr", encoded(value)) for name, value in emitted.constexprs.items()}
    ours = {**{name: Argument(name, kind) for name, kind in emitted.signature.items()}, **constants}
    theirs = {each.name: replace(each, attributes={}) for each in artifact.record.arguments or ()}
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            raise TileError(
                f"{artifact.file.what} does not take the arguments of {origin.name}: {emitted.name} has "
                f"{ours.get(name, f'no {name}')}, and it has {theirs.get(name, 'none')}"
            )
    order = [name for name in theirs if name in emitted.signature]
    if order != list(emitted.signature):
        raise TileError(
            f"{artifact.file.what} takes {', '.join(order)}, and {emitted.name} is launched with "
            f"{', '.join(emitted.signature)}",
            notes=["put the JSON file that was saved with it beside it"],
        )
