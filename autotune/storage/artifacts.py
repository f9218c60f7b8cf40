"""What a tuned configuration became, as files beside the result: source, Triton's stages, binary, metadata.

`launch.json` has what a call in another process needs, so that it lowers and compiles nothing. The source in it is run,
so the file counts only if the user (or root) owns it and nobody else may write it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.journal import write_json
from tiledsl.autotuner.storage.key import folder_name
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import digest, source_digest
from tiledsl.files import make_private, read_file, write_file
from tiledsl.runtime import kernel_files
from tiledsl.strict_json import NONSENSE, parse, plain

LAUNCH_SCHEMA = 1
_LAUNCH = "launch.json"
_log = logging.getLogger("tiledsl")


def save(folder: Path, trial: Trial) -> list[Path]:
    """Write a trial's artifacts and return their paths, metadata.json last. OSError if the folder cannot be written.

    `<program>.py` is the Triton module, `<kernel>.<stage>` what Triton made of each kernel, as far as the target has
    it: the interpreter has none. Triton takes the stages from its own cache, where the tuning left them.
    `<kernel>.<digits>.kept.*` are what launches take; see launch_stored.
    """
    kernel = trial.kernel
    make_private(folder)
    for old in (folder / _LAUNCH, *folder.glob("*.kept.*")):  # of an earlier winner
        old.unlink(missing_ok=True)
    source, metadata = folder / f"{folder_name(kernel.name)}.py", folder / "metadata.json"
    write_file(source, kernel.source.encode())
    files = [source]
    kernels: dict[str, Any] = {}
    try:
        compiled = kernel.compiled if kernel.target.kind != "interpret" else {}
        for name, each in compiled.items():
            files += kernel_files.write(folder, folder_name(name), kernel_files.contents(each))
            kernels[name] = {"resources": plain(asdict(each.resources)), "metadata": plain(dict(each.metadata))}
        if compiled:
            files += _save_launch(folder, trial, compiled)
    except OSError:
        raise
    except Exception as error:  # of the compiler: the result stands without its stages
        _log.info("autotune: the stages of %s are not kept (%s)", kernel.name, error)
    config = plain(trial.config)
    write_json(metadata, {"program": kernel.name, "target": str(kernel.target), "config": config, "kernels": kernels})
    return [*files, metadata]


def _save_launch(folder: Path, trial: Trial, compiled: Mapping[str, Any]) -> list[Path]:
    from tiledsl.kernels.stored import describe_call
    from tiledsl.runtime.launch_stored import CachedBinary

    kernel, source = describe_call(trial.kernel), digest(trial.kernel.source)
    if json.loads(json.dumps(kernel, allow_nan=False)) != kernel:  # there are values that JSON does not have
        return []
    written: list[Path] = []
    for name, each in compiled.items():
        if each.level:  # its module takes the file that it names
            continue
        written += CachedBinary(name, folder, source).keep(each.triton, each.options)
    write_json(folder / _LAUNCH, {"schema": LAUNCH_SCHEMA, "config": config_key(trial.config), "kernel": kernel})
    return [*written, folder / _LAUNCH]


def read_artifacts(folder: Path, trial: Trial) -> dict[str, Any] | None:
    """Attributes of a Kernel, as far as calls need them, of what `save` wrote for this trial's configuration and source
    into the folder (or with keep_all into the one below); None if there is nothing, or it makes no sense."""
    key = config_key(trial.config)
    for place in (folder, folder / digest(key)[:12]):
        try:
            found = _parsed(place, parse(read_file(place / _LAUNCH, own=True)), key)
            if source_digest(found["module"].source) == trial.source_hash:
                return found
        except FileNotFoundError:
            pass
        except (OSError, *NONSENSE) as error:
            _log.info("autotune: %s makes no sense (%s)", place / _LAUNCH, error)
    return None


def _parsed(place: Path, data: Any, key: str) -> dict[str, Any]:
    from tiledsl.kernels.stored import call_fields
    from tiledsl.runtime.launch_stored import CachedBinary

    if data["schema"] != LAUNCH_SCHEMA or data["config"] != key:
        raise ValueError("another schema or configuration")
    found = call_fields(data["kernel"])
    module = found["module"]
    return {**found, "kept": tuple(CachedBinary(each.name, place, digest(module.source)) for each in module.kernels)}
