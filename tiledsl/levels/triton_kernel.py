"""Kernels written in Triton itself, or of which there is only a binary, launched from any level."""

from __future__ import annotations

import copy
import keyword
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.levels.artifact import Artifact, artifact
from tiledsl.levels.build import unknown_option
from tiledsl.levels.bundle import LevelFile, check_level, folder_path, is_content, open_level, save
from tiledsl.levels.checks import check_allow
from tiledsl.levels.kernel import compiled_for
from tiledsl.levels.record import Argument, Record, parsed
from tiledsl.levels.specialise import specialise
from tiledsl.runtime.compile import Asm, CompiledKernel, compile_kernel
from tiledsl.runtime.kernel_files import LEVELS
from tiledsl.runtime.module import load_module
from tiledsl.runtime.resources import Resources
from tiledsl.runtime.target import Target

_FROM_BINARY_ON = ("cubin", "hsaco", "ptx", "amdgcn", "llir", "ttgir", "ttir")


class TritonKernel:
    """A kernel that is launched as Triton's are, `kernel[grid](*arguments, **constants)`, from its source or, if
    `from_level` made it, from a file of a level. Then constants that a call leaves out are those of the file."""

    def __init__(self, function: Any, made_from: Artifact | None = None) -> None:
        """`function` is Triton's JITFunction."""
        self.artifact = made_from
        self.__name__ = self.name = str(function.__name__)
        self._given = function
        self.function = function
        if made_from is not None:
            self.function = copy.copy(function)  # what the other one has compiled stays its own
            made_from.attach(self.function)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What it runs from, and what was noticed about that."""
        return () if self.artifact is None else self.artifact.remarks

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the file was compiled for; nothing where it runs from source."""
        return () if self.artifact is None else self.artifact.record.arguments or ()

    @property
    def compiled(self) -> CompiledKernel:
        """The kernel compiled from its level on. TileError where it runs from source, which each call compiles."""
        if self.artifact is None:
            raise TileError(
                f"{self.name} runs from its source, which is compiled for a call's arguments",
                notes=["name them: kernel.compile(*arguments, target='cuda:90')"],
            )
        return self.artifact.compiled

    @property
    def asm(self) -> Asm:
        """The texts and the binary, from the level on."""
        return self.compiled.asm

    @property
    def resources(self) -> Resources:
        """Shared memory, registers, spills and occupancy."""
        return self.compiled.resources

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        if self.artifact is None:
            return self.function[grid]  # type: ignore[no-any-return]
        return lambda *arguments, **keywords: self._launch(grid, arguments, keywords)

    def _launch(self, grid: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        names, constants, fused = self._facts
        given = {name: value for name, value in constants.items() if name not in names[: len(arguments)]}
        given |= keywords
        if not given.keys() <= set(names):
            self._check_options({name: given.pop(name) for name in list(given) if name not in names})
        try:
            return self.function.run(*arguments, grid=grid, warmup=False, enable_fp_fusion=fused, **given)
        except RuntimeError as error:
            if "active drivers" not in str(error):  # of Triton: it knows of no GPU
                raise
            raise TileError(
                f"{self.name} is for {self.artifact.target}, and there is no GPU here",  # type: ignore[union-attr]
                notes=["its asm and its resources need none"],
            ) from None

    @cached_property
    def _facts(self) -> tuple[list[str], dict[str, Any], bool]:
        """The arguments' names, constants that a call may leave out, and an option that Triton 3.9 warns of without."""
        assert self.artifact is not None
        constants = {
            each.name: tuple(each.value) if isinstance(each.value, list) else each.value
            for each in self.arguments
            if each.is_constant and not isinstance(each.value, dict)
        }
        fused = self.artifact.record.options.get("enable_fp_fusion", True)
        return [each.name for each in self.arguments], constants, bool(fused)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Raises TileError for options that a call gives, unless the level was compiled with them."""
        assert self.artifact is not None
        told = dict(self.compiled.metadata)
        if self.artifact.file.level != "ttgir":  # which says its warps itself
            told |= self.artifact.record.options
        for name, value in options.items():
            if name not in told:
                raise TileError(f"{self.name} has no argument {name!r}", notes=[f"it has {', '.join(self._facts[0])}"])
            if told[name] != value:
                raise TileError(
                    f"{self.name} from {self.artifact.file.what} has {name}={told[name]}, and the call {value}",
                    notes=[f"leave {name} out: what a level was compiled with cannot be changed at the launch"],
                )

    def compile(self, *arguments: Any, target: Any = None, **keywords: Any) -> CompiledKernel:
        """The kernel compiled from source for such arguments. Needs no GPU. Raises CompileError.

        arguments: tensors and numbers as for a launch, or Triton's names of types: "*fp16:16" for an address that is a
        multiple of 16, "i32", "i32:16", "fp32". keywords: constants, and options such as num_warps. target: "cuda:90";
        by default that of the GPU here.
        """
        types, constants, divisible, options = specialise(self._given, arguments, keywords)
        where = Target.parse("cuda" if target is None else target)
        if where.kind == "interpret":
            raise TileError(
                f"the target {str(where)!r} compiles nothing", notes=["say target='cuda:90', or another GPU"]
            )
        unknown = unknown_option(options, where)
        if unknown:
            names = ", ".join(self._given.arg_names)
            raise TileError(
                f"{self.name} has no argument {unknown!r}, and Triton has no such option for {where}",
                notes=[f"it has {names}; options are num_warps, num_stages and so on"],
            )
        return compile_kernel(self._given, types, constants, where, attrs=divisible, options=options)

    def save_levels(self, folder: str | os.PathLike[str], *arguments: Any, target: Any = None, **keywords: Any) -> list[Path]:  # fmt: skip # noqa: E501
        """Write every level of the kernel compiled for such arguments (see `compile`), and a JSON file that says what
        they are; the paths. Of a kernel that runs from a level, which takes no arguments here, the levels below it."""
        where = folder_path(folder)
        if self.artifact is not None:
            if arguments or keywords:
                raise TileError(f"{self.name} runs from {self.artifact.file.what}, for which its arguments are settled")
            record = self.artifact.record
            return save(where, self.name, self.compiled, self.arguments, record.language, record.source)
        compiled = self.compile(*arguments, target=target, **keywords)
        described, language = compiled_for(compiled.triton.src)
        return save(where, self.name, compiled, described, language, _digest(self._given))

    def from_level(
        self, level: str, source: str | os.PathLike[str], *, target: Any = None, allow: Collection[str] = ()
    ) -> TritonKernel:
        """This kernel launched from a file of a level, or from the one of its name in a folder; see Kernel.from_level.

        Beside it lies its JSON file, of `save_levels` or of Triton Runner. target: by default what the file is for.
        Raises TileError for a file that does not fit; so does a launch with arguments for which it was not compiled.
        """
        if is_content(source):
            raise TileError(
                f"{self.name}: a {level} without a JSON file does not say what constants it was compiled for",
                notes=["give the path of a file that lies beside the JSON file of save_levels()"],
            )
        file = open_level(check_level(level), source, self.name)
        return TritonKernel(self._given, _artifact(self._given, file, target, allow))

    def dump(self, value: str, *, block: Sequence[int] | None = (0, 0, 0)) -> TritonKernel:
        """This kernel with one argument more, `dump`: a tensor that gets a value by its name in the ttir or ttgir.

        value: "%acc_42", or "%9#1" for the second result of an operation. It is stored in row-major order and in its
        own element type (int8 for booleans), each time that it is computed: what a loop computed last stays. block:
        which block of the grid stores it, up to three numbers; None: all, one behind the other, the first dimension of
        the grid the fastest. The last of `remarks` says the type and the shape. Source of the idea: Triton Runner's
        dump_value. Raises TileError for other levels, for names that the text does not have, and for pointers, memory
        and the like.

        Example:
            made = tiledsl.triton_kernel("levels/scale.ttir").dump("%y_12", block=(3,))
            made[grid](x, y, n, dump=torch.empty(128, device="cuda"))
        """
        from tiledsl.levels.dump import LEVELS_WITH_VALUES, dumping

        file = None if self.artifact is None else self.artifact.file
        if self.artifact is None or file is None or file.level not in LEVELS_WITH_VALUES:
            raise TileError(
                f"{self.name} runs from {'its source' if file is None else file.what}, which names no values",
                notes=["save_levels() writes its ttir: triton_kernel('folder', 'ttir').dump(...)"],
            )
        numbers = () if block is None else tuple(block)
        if len(numbers) > 3 or not all(isinstance(each, int) and 0 <= each < 1 << 31 for each in numbers):
            raise TileError(f"block={block!r} is no place in a grid, which has up to three numbers")
        made = dumping(file, self.artifact.record, self.artifact.target, value, None if block is None else numbers)
        assert made.file.record is not None
        function = _stand_in(made.file.record, made.file)
        shape = ", ".join("blocks" if size < 0 else str(size) for size in made.shape)
        found = _artifact(function, made.file, self.artifact.target, ())
        remark = f"{made.name} gets {value} of {file.what}: {made.dtype} of ({shape})"
        return TritonKernel(function, replace(found, remarks=(*found.remarks, remark)))

    def __repr__(self) -> str:
        """With a digest of what it runs from: the tuner's keys have it."""
        if self.artifact is None:
            return f"<triton kernel {self.name}, source {_digest(self._given)[:16]}>"
        return f"<triton kernel {self.name} from {self.artifact.file.what}, {self.artifact.file.digest[:16]}>"


def triton_kernel(source: Any, level: str = "", *, target: Any = None, allow: Collection[str] = ()) -> TritonKernel:
    """A kernel that was not written in this language: a function under @triton.jit or @gluon.jit, or files of one.

    source: the function; or a folder with a kernel's levels and its JSON file (of `save_levels` or of Triton Runner),
    or one such file; no source is needed then. level: which of a folder's files to run from, by default the binary.
    target, allow: see TritonKernel.from_level. Raises TileError for what is none of these or does not fit.
    """
    if hasattr(source, "arg_names") and hasattr(source, "create_binder"):
        if level:
            raise TileError(
                f"a level of {source.__name__} is to lie in a file: triton_kernel(f).from_level({level!r}, path)"
            )
        return TritonKernel(source)
    if not isinstance(source, (str, os.PathLike)) or is_content(source):
        inner = getattr(source, "fn", None)
        notes = ["give the function below its decorator: its .fn"] if inner is not None else []
        raise TileError(
            f"triton_kernel takes a function under @triton.jit or a path, not {type(source).__name__}", None, notes
        )
    path = Path(source)
    if not os.path.exists(path):
        raise TileError(f"there is no {path}")
    name, found = _in_folder(path, level) if path.is_dir() else (path.stem, path.suffix[1:])
    if not path.is_dir() and found not in LEVELS:
        raise TileError(f"{path} is no level of a kernel", notes=[f"give a folder, or a file of {', '.join(LEVELS)}"])
    file = open_level(check_level(level or found), path, name)
    if file.record is None:
        raise TileError(f"{file.what} has no JSON file beside it, which says what its arguments are", notes=[_WAY_OUT])
    function = _stand_in(file.record, file)
    return TritonKernel(function, _artifact(function, file, target, allow))


class Kernels(dict[str, TritonKernel]):
    """Kernels by the names of the folders that they lie in; `left_out` says why others are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[str, str] = {}


def triton_kernels(
    folder: str | os.PathLike[str],
    level: str = "",
    *,
    function: Any = None,
    target: Any = None,
    allow: Collection[str] = (),
) -> Kernels:
    """The kernels in a folder's folders, such as the variants that a tuner chooses from, in the order of their names.

    level: which file to run each from, by default the binary. function: the source under @triton.jit, if there is one.
    target, allow: see TritonKernel.from_level. Folders without such a file, or with one that does not fit, are left out
    with a reason. TileError if all are.
    """
    path = folder_path(folder)
    if not os.path.isdir(path):
        raise TileError(f"there is no folder {folder}")
    source = None if function is None else triton_kernel(function)
    kernels = Kernels()
    for inner_folder in sorted(inner for inner in path.iterdir() if inner.is_dir()):
        try:
            made = triton_kernel(inner_folder, level, target=target, allow=allow)
            if source is not None and made.artifact is not None:
                made = source.from_level(made.artifact.file.level, inner_folder, target=target, allow=allow)
            kernels[inner_folder.name] = made
        except TileError as error:
            kernels.left_out[inner_folder.name] = error.message
    if not kernels:
        notes = [f"{name}: {reason}" for name, reason in list(kernels.left_out.items())[:8]]
        if any(each.suffix[1:] in LEVELS for each in path.iterdir()):
            notes.append(f"{folder} itself has levels of a kernel: triton_kernel({str(folder)!r})")
        raise TileError(f"{folder} has no folder with a kernel to run", notes=notes)
    return kernels


_WAY_OUT = "triton_kernel(function).save_levels(folder, ...) writes one"


def _in_folder(folder: Path, level: str) -> tuple[str, str]:
    """The kernel's name in a folder, and the level to run it from."""
    described = []
    for file in sorted(folder.glob("*.json")):
        try:
            parsed(file.read_bytes(), str(file))
        except TileError:  # other files of Triton's, such as a group's
            continue
        described.append(file.stem)
    if len(described) != 1:
        there_are = f"it has those of {', '.join(described)}; give the path of a file" if described else _WAY_OUT
        raise TileError(f"{folder} has the JSON files of {len(described)} kernels, not of one", notes=[there_are])
    name = described[0]
    wanted = (level,) if level else _FROM_BINARY_ON
    chosen = next((level for level in wanted if (folder / f"{name}.{level}").is_file()), None)
    if chosen is None:
        what = f"no {level}" if level else "no level"
        there = [level for level in LEVELS if (folder / f"{name}.{level}").is_file()]
        raise TileError(f"{folder} has {what} of {name}", notes=[f"it has {', '.join(there)}"] if there else [])
    return name, chosen


def _artifact(function: Any, file: LevelFile, target: Any, allow: Collection[str]) -> Artifact:
    record = file.record
    if record is None or record.arguments is None:
        raise TileError(
            f"{file.what} is launched with arguments that no JSON file beside it describes", notes=[_WAY_OUT]
        )
    names = [each.name for each in record.arguments]
    if names != list(function.arg_names):
        raise TileError(
            f"{file.what} is of a kernel with the arguments {', '.join(names)}, and {function.__name__} has "
            f"{', '.join(function.arg_names)}"
        )
    if record.target is None and target is None:
        raise TileError(
            f"{file.what}: nothing says which GPU it is for", notes=["say target='cuda:90', or another one"]
        )
    where = record.target if target is None else Target.parse(target)
    assert where is not None
    own: Callable[[], Record] = lambda: record  # noqa: E731
    return artifact(function.__name__, file, where, check_allow(allow), own, lambda *_: _origin(function, record, file))


def _origin(function: Any, record: Record, file: LevelFile) -> list[str]:
    """A remark where the function's text is another one than the level was compiled from."""
    if not record.source or record.source == _digest(function) or hasattr(function, "stands_in"):
        return []
    return [f"{file.what} was compiled from another text of {function.__name__}"]


def _digest(function: Any) -> str:
    return digest(str(function.src))


def _stand_in(record: Record, file: LevelFile) -> Any:
    """A jitted function with the arguments of a record, which is never compiled."""
    arguments = record.arguments or ()
    unfit = next((each for each in (record.name, *(a.name for a in arguments)) if not _is_name(each)), None)
    if unfit is not None:
        raise TileError(f"{file.what}: {unfit!r} is no name in Python")
    shown = ", ".join(f"{each.name}: tl.constexpr" if each.is_constant else each.name for each in arguments)
    text = (
        f"# Stands for a kernel of which there is no source.\nimport triton\nimport triton.language as tl\n\n\n"
        f"@triton.jit\ndef {record.name}({shown}):\n    pass\n"
    )
    function = copy.copy(getattr(load_module(record.name, text, interpret=False), record.name))
    function.stands_in = True
    return function


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text) and text not in ("triton", "tl")
