"""Kernels as Triton compiled them, kept as files: a launch in a new process takes them and compiles nothing.

Triton has a cache of its own, but to look there a process first hashes Triton's library, which takes over a second, and
asks ptxas for its version. Here a jitted function that is about to be compiled is given the kept binary instead, if all
that Triton's key depends on is as it was: the function's text (which the caller compares), types, constants and
alignments of the arguments, options, target, Triton's version and the size of its library, and the variables that
Triton's compiler reads. Whatever differs is compiled, or found in Triton's cache, as without this module.

Triton's C function that launches kernels, and the one that loads them, are in its cache where a kernel of these
parameters has run before. On another machine a C compiler makes them once, which takes seconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.runtime.launch_triton import knobs

BINARIES = ("cubin", "hsaco")
# Where one of these is set, Triton is to be seen compiling.
_WATCHED = {"compilation": ("always_compile", "override", "dump_ir", "listener", "instrumentation_mode"), "runtime": ("add_stages_inspection_hook", "jit_cache_hook", "jit_post_compile_hook", "debug")}  # fmt: skip # noqa: E501


@dataclass(frozen=True)
class Binary:
    """One kernel: `asked` is what it was compiled for, as JSON values; `files` Triton's metadata and the binary by the
    names that Triton gives them; `digests` their SHA-256."""

    name: str
    asked: Mapping[str, Any]
    files: Mapping[str, Path]
    digests: Mapping[str, str]

    def load(self, src: Any, target: Any, options: Mapping[str, Any]) -> Any:
        """Triton's compiled kernel for its ASTSource; None if it is not what was kept, or the files are not."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            if _is_watched() or asked(src, target, options) != self.asked:
                return None
            contents = {name: path.read_bytes() for name, path in self.files.items()}
            if any(hashlib.sha256(data).hexdigest() != self.digests[name] for name, data in contents.items()):
                return None
            from triton.compiler import CompiledKernel

            metadata = json.loads(contents[f"{self.name}.json"])
            compiled = CompiledKernel(src, {name: str(path) for name, path in self.files.items()}, metadata["hash"])
            return compiled if compiled.kernel in contents.values() else None  # it read the files again
        return None


def asked(src: Any, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What Triton compiles for besides the function's text, as JSON values: arguments, options, target, Triton itself.

    src: Triton's ASTSource; options: as triton.compile takes them. Raises what Triton raises for wrong options.
    """
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import make_backend

    parsed = make_backend(target).parse_options({**options, **src.parse_options()})
    values = {
        "language": str(src.language),
        "signature": dict(src.signature),
        "constants": {str(path): str(value) for path, value in src.constants.items()},
        "attrs": str(src.attrs),
        "options": vars(parsed),
        "target": vars(target),
        "variables": get_cache_invalidating_env_vars(),
        "triton": str(triton.__version__),
        "library": _library_size(),
    }
    return dict(json.loads(json.dumps(values, default=str)))


def contents(compiled: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Of what triton.compile returned for these options: what it was compiled for, and the files that Binary needs.

    Raises LookupError if Triton's cache no longer has its metadata.
    """
    files = {f"{compiled.name}.{kind}": bytes(compiled.asm[kind]) for kind in BINARIES if kind in compiled.asm}
    path = next(Path(path) for name, path in compiled.metadata_group.items() if name.endswith(".json"))
    try:
        files[f"{compiled.name}.json"] = path.read_bytes()
    except OSError as error:
        raise LookupError(f"Triton's metadata of {compiled.name}") from error
    return asked(compiled.src, compiled.metadata.target, options), files


def offer(function: Any, binary: Binary) -> None:
    """Have a jitted function that has not run yet take the binary where it would compile what that is."""
    if knobs() is None or function.device_caches:  # an unknown Triton, or one that has already looked
        return
    create = function.create_binder

    def create_binder() -> Any:
        made = create()  # sets `compile`, for each device
        ordinary = function.compile

        def compile(src: Any, target: Any = None, options: Any = None, **others: Any) -> Any:
            found = binary.load(src, target, options)
            return ordinary(src, target=target, options=options, **others) if found is None else found

        function.compile = compile
        return made

    function.device_caches = defaultdict(create_binder)


def _is_watched() -> bool:
    found = knobs()
    if found is None:
        return True
    runtime, compilation = found
    owners = {"runtime": runtime, "compilation": compilation}
    return any(getattr(owners[owner], name, None) for owner, names in _WATCHED.items() for name in names)


@functools.cache
def _library_size() -> int:
    from triton._C import libtriton

    return Path(str(libtriton.__file__)).stat().st_size
