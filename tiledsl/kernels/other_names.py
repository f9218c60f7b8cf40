"""What TileLang's compiled kernels answer under names of its own: sources, PTX, numbers, results of tuning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError
from tiledsl.files import write_output

if TYPE_CHECKING:
    from tiledsl.runtime.parameter import Parameter
    from tiledsl.runtime.resources import Resources
    from tiledsl.runtime.target import Target


class OtherNames:
    """A part of Kernel. The kernel and the host's launcher are one module of Triton source here: both are `source`."""

    target: Target
    params: list[Parameter]
    config: dict[str, Any] | None
    latency: float | None
    ref_latency: float | None
    if TYPE_CHECKING:

        @property
        def source(self) -> str: ...

        @property
        def asm(self) -> Mapping[str, Any]: ...

        @property
        def resources(self) -> Resources: ...

    def get_host_source(self) -> str:
        """The Triton source, which holds the launcher, too."""
        return self.source

    @property
    def kernel_source(self) -> str:
        """The Triton source."""
        return self.source

    host_source = kernel_source

    @property
    def out_idx(self) -> list[int]:
        """The positions of the parameters that a call allocates and returns."""
        return [index for index, each in enumerate(self.params) if each.is_output]

    def show_source(self, which: str = "kernel") -> None:
        """Print the Triton source. `which` may be "kernel", "host" or "both": it is one text."""
        print(self.source)

    def print_source_code(self, which: str = "kernel", file: str | None = None) -> None:
        """Print the Triton source, or write it to `file`."""
        self.show_source(which) if file is None else self.export_sources(file)

    def export_sources(self, kernel_path: str | None = None, host_path: str | None = None) -> None:
        """Write the Triton source to the files that are named. TileError if none is."""
        if kernel_path is None and host_path is None:
            raise TileError("export_sources needs kernel_path or host_path")
        for path in filter(None, (kernel_path, host_path)):
            _write(path, self.source)

    def show_ptx(self) -> None:
        """Print the PTX of the kernels. TileError where none is made: for AMD, and in the interpreter."""
        print(self._assembly("ptx"))

    def export_ptx(self, path: str) -> None:
        """Write the PTX of the kernels to a file; otherwise as show_ptx."""
        _write(path, self._assembly("ptx"))

    def show_sass(self) -> None:
        """Print the SASS of the kernels; otherwise as show_ptx."""
        print(self._assembly("sass"))

    def export_sass(self, path: str) -> None:
        """Write the SASS of the kernels to a file; otherwise as show_ptx."""
        _write(path, self._assembly("sass"))

    def _assembly(self, level: str) -> str:
        if level not in self.asm:
            made = ", ".join(map(str, self.asm)) or "none"
            raise TileError(f"there is no {level.upper()} of this kernel", notes=[f"levels that are here: {made}"])
        return str(self.asm[level])

    @property
    def n_regs(self) -> int | None:
        """Registers of a thread; None where the kernel is not compiled to machine code."""
        return None if self.target.kind == "interpret" else self.resources.registers

    @property
    def n_spills(self) -> int | None:
        """Bytes that a thread spills to local memory; None where the kernel is not compiled to machine code."""
        return None if self.target.kind == "interpret" else self.resources.spills

    def get_tuner_result(self) -> dict[str, Any]:
        """The configuration and latencies, in milliseconds, of a tuned kernel. TileError for others."""
        if self.latency is None:
            raise TileError("this kernel was not tuned: it has no latency")
        return {"latency": self.latency, "config": self.config, "ref_latency": self.ref_latency}

    def update_tuner_result(self, latency: float, config: Mapping[str, Any], ref_latency: float | None) -> Any:
        """Set what get_tuner_result gives; the kernel itself."""
        self.latency, self.config, self.ref_latency = latency, dict(config), ref_latency
        return self


def _write(path: str, text: str) -> None:
    folder = os.path.dirname(path)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    write_output(path, text.encode())
