"""A kernel's level in place of its source: what launches of a jitted function take then."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.files import make_private, write_file, writing
from tiledsl.levels.build import CACHE, attributes_of, build
from tiledsl.levels.bundle import LevelFile, open_level
from tiledsl.levels.checks import checked, facts_of
from tiledsl.levels.record import Record, arguments_of, refusal
from tiledsl.runtime.compile import CompiledKernel, source_type
from tiledsl.runtime.launch_triton import compile_by
from tiledsl.runtime.target import Target
from tiledsl.settings import current


@dataclass(frozen=True)
class Artifact:
    """A level that has been checked, and is compiled from there on when it is first needed."""

    name: str
    file: LevelFile
    record: Record
    target: Target
    remarks: tuple[str, ...]

    @functools.cached_property
    def compiled(self) -> CompiledKernel:
        """The kernel compiled from the level on. Raises CompileError."""
        return build(self.file, self.record, self.target)

    def compiled_by(self, function: Any) -> CompiledKernel:
        """The same, as made for launches of a jitted function. Raises CompileError."""
        recorded = self.record.arguments or ()
        constants = {(number,): each.value for number, each in enumerate(recorded) if each.is_constant}
        types = {each.name: each.type for each in recorded}
        source = source_type(function)(function, types, constants, dict(attributes_of(self.record)))
        self.compiled.triton.src = source
        return self.compiled

    def attach(self, function: Any) -> None:
        """Have a jitted function that has not run yet launch this, and refuse calls for which it was not compiled."""
        function.artifact = self
        compile_by(
            function,
            lambda _: lambda source, target=None, options=None, **_: self._launched(function, source, target),
        )

    def store(self) -> tuple[Path, str]:
        """Keep the level and what is known of it in the cache; the path, and a digest of both. May raise TileError."""
        described = self.record.text().encode()
        key = _digest(self.file.level, self.file.data, described)
        folder = Path(current().cache_dir).expanduser().absolute() / "levels" / key[:32]
        path = folder / f"{self.name}.{self.file.level}"
        with writing(folder, notes=[CACHE]):
            make_private(folder)
            for each, data in ((path, self.file.data), (path.with_suffix(".json"), described)):
                if not each.is_file() or each.read_bytes() != data:
                    write_file(each, data)
        return path, key

    def _launched(self, function: Any, source: Any, target: Any) -> Any:
        """Triton's compiled kernel for a launch that Triton describes by an ASTSource."""
        here = Target.parse({"kind": target.backend, "arch": target.arch})
        if here != self.target:
            raise TileError(f"{self.name} runs from a {self.file.level} for {self.target}, and this GPU is {here}")
        names = list(source.signature)
        launched = arguments_of(names, source.signature, source.constants, source.attrs)
        recorded = self.record.arguments or ()
        reason = refusal(recorded, launched)
        if reason:
            raise TileError(
                f"{self.name} from {self.file.what}: {reason}",
                notes=["call the kernel that is compiled from source, or save this level for such arguments"],
            )
        return self.compiled_by(function).triton


_AGAIN = "it belongs to the cache: call from_level() again, or tune again"


def attach_file(function: Any, path: str, stored: str, target: str, original: str = "") -> None:
    """Attach what `Artifact.store` wrote, for emitted modules. original: the file that errors name if it is the same.

    TileError if it is gone or is not what it was.
    """
    if not os.path.exists(path):
        raise TileError(f"{path} is gone, from which {function.__name__} runs", notes=[_AGAIN])
    name, level = os.path.splitext(os.path.basename(path))
    file = open_level(level[1:], path, name)
    record = file.record
    if record is None or _digest(file.level, file.data, record.text().encode()) != stored:
        raise TileError(f"{path} has been changed, from which {function.__name__} runs", notes=[_AGAIN])
    with contextlib.suppress(OSError):
        if original and Path(original).read_bytes() == file.data:
            file = replace(file, path=Path(original))
    Artifact(name, file, record, Target.parse(target), ()).attach(function)


def _digest(level: str, data: bytes, described: bytes) -> str:
    return digest(b"\0".join((level.encode(), bytes.fromhex(digest(data)), described)))


def artifact(
    name: str,
    file: LevelFile,
    target: Target,
    allow: Collection[str],
    own_record: Callable[[], Record],
    check_origin: Callable[[LevelFile, Record | None, Collection[str]], list[str]],
) -> Artifact:
    """Check a level of the kernel `name`, and make an Artifact of it. Raises TileError for what does not fit.

    own_record: gives the record where no file does; it may refuse. check_origin: says whether it is of the same source.
    """
    if target.kind not in ("cuda", "hip"):
        raise TileError(
            f"{name} is for {target}, which runs the source as it is",
            notes=["compile it for a GPU first: target='cuda:90' needs none"],
        )
    facts = facts_of(file.what, file.level, file.content, target)
    remarks = check_origin(file, file.record, allow)
    record = own_record() if file.record is None else file.record
    record, more = checked(file.what, file.level, facts, record, target, allow)
    saved = record.files.get(file.level)
    edited = " (edited)" if saved is not None and saved != file.digest else ""
    return Artifact(name, file, record, target, (f"{name} runs from {file.what}{edited}", *remarks, *more))
