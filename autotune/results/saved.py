"""A result as one file of strict JSON: the trials, the winner's Triton source and program. Nothing is unpickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tiledsl import strict_json
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.verifying.certified import attach
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.files import read_file, write_output
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.stored import StoredKernel, describe
from tiledsl.runtime.target import Target
from tiledsl.version import __version__

if TYPE_CHECKING:
    from tiledsl.autotuner.results.result import AutotuneResult

    Result = TypeVar("Result", bound=AutotuneResult)

SCHEMA = 1


def save(result: AutotuneResult, path: str | os.PathLike[str]) -> Path:
    """Write the file in one step. OSError if the folder is not there or cannot be written."""
    return write_output(path, as_text(result))


def as_text(result: AutotuneResult) -> bytes:
    """What the file has."""
    trials = []
    for trial in result.trials:
        record = journal.encode(trial)
        trials.append(
            {**record, "index": trial.index, "config": strict_json.plain(trial.config), "same_as": trial.same_as}
        )
    return strict_json.json_text(
        {
            "schema": SCHEMA,
            "tiledsl": __version__,
            "config": strict_json.plain(result.config),
            "latency": result.latency,
            "ref_latency": result.ref_latency,
            "latency_kind": result.latency_kind,
            "flops": result.flops,
            "bytes_moved": result.bytes_moved,
            "minimised": result.minimised,
            "kernel": strict_json.plain(describe(result.kernel)),
            "trials": trials,
        }
    )


def load(cls: type[Result], path: str | os.PathLike[str], target: Any = None) -> Result:
    """The result of a file; see AutotuneResult.load."""
    from_file = Path(path)
    try:
        content = read_file(from_file)
    except (OSError, ValueError) as error:
        raise TileError(f"{from_file} is not a saved result: {type(error).__name__}: {error}") from error
    return from_text(cls, content, str(from_file), target)


def from_text(cls: type[Result], content: Any, where: str = "the pickle", target: Any = None) -> Result:
    """The result of what `as_text` made."""
    try:
        data = strict_json.parse(content)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a result of schema {SCHEMA}")
        stored = StoredKernel(data["kernel"])
        config = data["config"]
        if not isinstance(config, dict) or data["latency_kind"] not in ("measured", "estimated"):
            raise ValueError("config or latency_kind")
        latency, ref_latency = journal.number(data["latency"]), journal.number(data["ref_latency"])
        timed = latency is not None  # else of a tuned-config file: nothing was measured
        trials = [_trial(number, each, timed) for number, each in enumerate(data["trials"])]
        minimised = data.get("minimised", "latency")
        if not isinstance(minimised, str):
            raise ValueError("minimised is no text")
        flops, bytes_moved = journal.number(data["flops"]), journal.number(data["bytes_moved"])
    except strict_json.NONSENSE as error:
        raise TileError(f"{where} is not a saved result: {type(error).__name__}: {error}") from error
    kernel: Kernel = stored
    if target is not None and Target.parse(target) != stored.target:
        kernel = stored.for_target(Target.parse(target))
    kernel.config, kernel.latency, kernel.ref_latency = dict(config), latency, ref_latency
    for trial in trials:
        is_winner = trial.ok and trial.config == config
        trial.build = (lambda: kernel) if is_winner else _not_there
        if is_winner and trial.certificate is not None:
            attach(kernel, trial.certificate, source_digest(kernel.source))
    result = cls(kernel, config, latency, ref_latency, tuple(trials), data["latency_kind"], "file", minimised=minimised)
    result.__dict__.update(flops=flops, bytes_moved=bytes_moved)  # known: nothing has to be read again
    return result


def _trial(number: int, record: Any, timed: bool) -> Trial:
    if not isinstance(record, dict) or record["index"] != number or not isinstance(record["config"], dict):
        raise ValueError(f"trial {number}")
    trial = journal.decode(number, record["config"], record, timed)
    same_as = record["same_as"]
    if same_as is not None and (type(same_as) is not int or not 0 <= same_as < number):
        raise ValueError(f"trial {number} is the same as {str(same_as)[:40]}")
    trial.same_as = same_as
    return trial


def _not_there() -> NoReturn:
    raise TileError("a saved result has the winner's program only", notes=["tune again to look at other trials"])
