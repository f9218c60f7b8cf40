"""A kernel's level in place of its source: what launches of a jitted function take then."""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError
from tiledsl.levels.build import attributes_of, build
from tiledsl.levels.bundle import LevelFile
from tiledsl.levels.checks import checked, facts_of
from tiledsl.levels.record import Record, arguments_of, refusal
from tiledsl.runtime.compile import CompiledKernel, source_type
from tiledsl.runtime.target import Target


@dataclass(frozen=True)
class Artifact:
    """A level that has been checked, and is compiled from there on when it is first needed."""

    name: str
    file: LevelFile
    record: Record
    target: Target
    remarks: tuple[str, ...]

    @property
    def edited(self) -> bool | None:
        """Whether the file is another one than was saved; None where nothing says so."""
        saved = self.record.files.get(self.file.level)
        return None if saved is None else saved != self.file.digest

    @functools.cached_property
    def compiled(self) -> CompiledKernel:
        """The kernel compiled from the level on. Raises CompileError."""
        return build(self.file, self.record, self.target)

    @property
    def digest(self) -> str:
        """Another one for what may run otherwise."""
        return hashlib.sha256(f"{self.file.level} {self.file.digest} {self.record.text()}".encode()).hexdigest()

    def attach(self, function: Any) -> None:
        """Have a jitted function that has not run yet launch this, and refuse calls for which it was not compiled."""
        create = function.create_binder

        def create_binder() -> Any:
            made = create()  # sets `compile`, for each device
            function.compile = lambda source, target=None, options=None, **_: self._launched(function, source, target)
            return made

        function.device_caches = defaultdict(create_binder)

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
        made = self.compiled.triton
        constants = {(number,): each.value for number, each in enumerate(recorded) if each.is_constant}
        types = {each.name: each.type for each in recorded}
        made.src = source_type(function)(function, types, constants, dict(attributes_of(self.record)))
        return made


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
