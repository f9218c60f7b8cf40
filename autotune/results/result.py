"""What tuning returns: the best kernel, and how it was found."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tiledsl.autotuner.other_names import RESULT_FILE
from tiledsl.autotuner.results.tried import Tried
from tiledsl.autotuner.trial import Trial, config_text, own_trials
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel
    from tiledsl.runtime.target import Target


def owned(result: AutotuneResult) -> AutotuneResult:
    """A result that its holder may change: what is remembered does not change with it."""
    return replace(result, config=copy.deepcopy(result.config), trials=tuple(own_trials(result.trials)))


@dataclass(frozen=True)
class AutotuneResult(Tried):
    """The best configuration's kernel. Called, it runs; attributes that it does not have are the kernel's.

    config:       the winning configuration.
    trials:       every configuration; each has .ir(after=...), .source, .asm and .resources.
    latency:      milliseconds; latency_kind: "measured" on this GPU, or "estimated" if the target cannot run here, for
                  the GPU that `estimated_for` names.
    ref_latency:  ref_prog's milliseconds, if measured.
    from_cache:   "" (tuned just now), "memory", "disk", "file" (see load) or "tuned" (a tuned-config file's; it has no
                  latency if its entry is for other arguments).
    minimised:    what the winner has least of: "latency", the name of a metric, or that of the function `objective`.
    complete:     False if Ctrl-C ended the run before every configuration was tried.
    """

    kernel: Kernel
    config: dict[str, Any]
    latency: float | None
    ref_latency: float | None
    trials: tuple[Trial, ...]
    latency_kind: Literal["measured", "estimated"]
    from_cache: Literal["", "memory", "disk", "file", "tuned"] = ""
    complete: bool = True
    minimised: str = "latency"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the kernel."""
        return self.kernel(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "kernel":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """As `save` writes it: the winner's kernel, and what is known of the trials."""
        from tiledsl.autotuner.results.saved import as_text, from_text

        return from_text, (type(self), as_text(self))

    def __deepcopy__(self, memo: Any) -> AutotuneResult:
        return owned(self)

    @property
    def subject(self) -> str:
        return self.kernel.name

    @property
    def tuned_on(self) -> Target:
        return self.kernel.target

    @property
    def source(self) -> str:
        """The Triton source."""
        return self.kernel.source

    @property
    def libcode(self) -> str:
        """The Triton source (the name is TileLang's)."""
        return self.kernel.source

    @property
    def func(self) -> Any:
        """The program (the name is TileLang's)."""
        return self.kernel.prim_func

    @property
    def bit_class(self) -> str:
        """With `numerics`, the class of the results' bits, equal for configurations that round alike; else ""."""
        return self.best.bit_class

    @property
    def metrics(self) -> dict[str, float]:
        """The winner's metrics, by name; see the option `metrics`. Those of others are theirs: trials[i].metrics."""
        return dict(self.best.metrics or {})

    @property
    def estimated_for(self) -> str:
        """The GPU that the latencies are estimated for, such as "H200"; "" if they are measured."""
        from tiledsl.autotuner.predicting.machines import machine_of

        return machine_of(self.kernel.target).name if self.latency_kind == "estimated" else ""

    @cached_property
    def flops(self) -> float | None:
        """Floating-point operations of the program's matrix products in one call; None if unknown."""
        from tiledsl.autotuner.predicting import model

        return model.flops(self.kernel)

    @cached_property
    def bytes_moved(self) -> float | None:
        """Bytes that one call must move to and from memory, each counted once; None if unknown."""
        from tiledsl.autotuner.predicting import model

        return model.bytes_moved(self.kernel)

    def diff(self, i: int, j: int, stage: str = "triton", context: int = 3) -> str:
        """A unified diff from trial i's kernel to trial j's, empty if they are equal. stage: "triton" or "source", the
        name of a pass, or ttir, ttgir, llir, ptx, sass, amdgcn, for which both are compiled."""
        from tiledsl.autotuner.results.difference import unified

        for index in (i, j):
            if not -len(self.trials) <= index < len(self.trials):
                raise TileError(f"there is no trial {index}; there are 0 to {len(self.trials) - 1}")
        return unified(self.trials[i], self.trials[j], stage, context)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result as one JSON file, from which `load` makes a callable result in another process."""
        from tiledsl.autotuner.results.saved import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], target: Any = None) -> AutotuneResult:
        """A result that `save` wrote. It needs no builder, and starts no compiler until it is called.

        target: replaces the one it was tuned for, such as "interpret"; the source stays the same. The file contains
        Triton source that a call executes: load only files that you trust like a program. Raises TileError for a
        malformed file.
        """
        from tiledsl.autotuner.results.saved import load

        return load(cls, path, target)

    def save_to_disk(self, path: str | os.PathLike[str], verbose: bool = False) -> None:
        """`save` into a folder, as TileLang's results do; the folder is made. `verbose` has no effect."""
        Path(path).mkdir(parents=True, exist_ok=True)
        self.save(Path(path) / RESULT_FILE)

    @classmethod
    def load_from_disk(cls, path: str | os.PathLike[str], compile_args: Any = None) -> AutotuneResult | None:
        """`load` from such a folder; None if there is none. The target is that of `compile_args`, if it has one."""
        file = Path(path) / RESULT_FILE
        return cls.load(file, getattr(compile_args, "target", None)) if file.is_file() else None

    def __repr__(self) -> str:
        latency = "no latency" if self.latency is None else f"{self.latency:.4f} ms {self.latency_kind}"
        latency += f" for {self.estimated_for}" if self.latency is not None and self.estimated_for else ""
        return f"<tuned {self.kernel.name}: {config_text(self.config)}, {latency}, {len(self.trials)} trials>"
