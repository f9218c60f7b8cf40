"""What a tuned configuration became, as files beside the result: source, Triton's stages, binary, metadata."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiledsl.autotuner.storage.journal import plain, write_file, write_json
from tiledsl.autotuner.storage.key import folder_name
from tiledsl.autotuner.trial import Trial

STAGES = ("ttir", "ttgir", "llir", "ptx", "cubin", "amdgcn", "hsaco")
_log = logging.getLogger("tiledsl")


def save(folder: Path, trial: Trial) -> list[Path]:
    """Write a trial's artifacts and return their paths, metadata.json last. OSError if the folder cannot be written.

    `<program>.py` is the Triton module, `<kernel>.<stage>` what Triton made of each kernel, as far as the target has
    it: the interpreter has none. Triton takes the stages from its own cache, where the tuning left them.
    """
    kernel = trial.kernel
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{folder_name(kernel.name)}.py"]
    write_file(written[0], kernel.source.encode())
    kernels: dict[str, Any] = {}
    try:
        compiled = kernel.compiled if kernel.target.kind != "interpret" else {}
        for name, each in compiled.items():
            for stage in STAGES:
                if stage in each.asm:
                    path = folder / f"{folder_name(name)}.{stage}"
                    text = each.asm[stage]
                    write_file(path, text if isinstance(text, bytes) else str(text).encode())
                    written.append(path)
            kernels[name] = {"resources": plain(asdict(each.resources)), "metadata": plain(dict(each.metadata))}
    except OSError:
        raise
    except Exception as error:  # of the compiler: the result stands without its stages
        _log.info("autotune: the stages of %s are not kept (%s)", kernel.name, error)
    written.append(folder / "metadata.json")
    config = plain(trial.config)
    write_json(
        written[-1], {"program": kernel.name, "target": str(kernel.target), "config": config, "kernels": kernels}
    )
    return written
