"""What tuning returns: the best kernel, and how it came to be the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tiledsl.autotuner.trial import Trial, config_text

if TYPE_CHECKING:
    from tiledsl.runtime.kernel import Kernel


@dataclass(frozen=True)
class AutotuneResult:
    """The best configuration's kernel. Called, it runs; what it does not have itself, the kernel answers.

    latency: milliseconds; latency_kind says whether they were "measured" on this GPU or "estimated" by a model, as they
    are where the target cannot run. ref_latency: ref_prog's, where measured. from_cache: "" (tuned just now), "memory"
    or "disk".
    """

    kernel: Kernel
    config: dict[str, Any]
    latency: float | None
    ref_latency: float | None
    trials: tuple[Trial, ...]
    latency_kind: Literal["measured", "estimated"]
    from_cache: Literal["", "memory", "disk"] = ""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the kernel."""
        return self.kernel(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "kernel":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    @property
    def libcode(self) -> str:
        """The Triton source (the name is TileLang's)."""
        return self.kernel.source

    @property
    def func(self) -> Any:
        """The program (the name is TileLang's)."""
        return self.kernel.prim_func

    @property
    def best(self) -> Trial:
        """The winner's trial."""
        return next(trial for trial in self.trials if trial.ok and trial.config == self.config)

    def table(self) -> str:
        """The trials as text, the best first, then the failures in order."""
        ranked = sorted(self.trials, key=lambda trial: (not trial.ok, trial.latency if trial.ok else 0.0, trial.index))
        head = ["", "configuration", "status", f"{self.latency_kind} ms", "max error", "registers", "spills", "shared"]
        rows = [head]
        for trial in ranked:
            resources = trial.resources or {}
            rows.append(
                [
                    "*" if trial.ok and trial.config == self.config else "",
                    config_text(trial.config),
                    trial.status + (f" (as {trial.same_as})" if trial.same_as is not None else ""),
                    _shown(trial.latency, ".4f"),
                    _shown(trial.max_error, ".2g"),
                    *(_shown(resources.get(name), "d") for name in ("registers", "spills", "shared_bytes")),
                ]
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        left = 3  # columns of words; the others are numbers
        lines = [
            "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
            for row in rows
        ]
        notes = [f"  {config_text(t.config)}: {t.message.strip().splitlines()[0]}" for t in ranked if t.message.strip()]
        return "\n".join([*lines, *notes])

    def __repr__(self) -> str:
        latency = "no latency" if self.latency is None else f"{self.latency:.4f} ms {self.latency_kind}"
        return f"<tuned {self.kernel.name}: {config_text(self.config)}, {latency}, {len(self.trials)} trials>"


def _shown(value: Any, form: str) -> str:
    if form == "d":
        return str(value) if isinstance(value, int) else "-"
    return format(value, form) if isinstance(value, (int, float)) else "-"
