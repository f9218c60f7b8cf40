"""What a remembered result depends on, field by field, and how two such keys differ."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiledsl.autotuner.storage.fingerprint import OPAQUE, VAGUE, canonical, program_text
from tiledsl.autotuner.user_functions import errors_of
from tiledsl.digests import digest, short_digest
from tiledsl.runtime.versions import compiler_hash, driver_version, ptxas, triton_version
from tiledsl.version import __version__

# Fields that name software: with strict_versions off, a result from other versions counts, with a warning.
VERSION_FIELDS = ("tiledsl", "compiler", "triton", "ptxas", "driver")
_SHOWN = 60  # characters of a value in an explanation


def asked_key(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """What the user's `key` function says of a call. TileError if it raises."""
    with errors_of("autotune: key", f"it is given the arguments by name: {', '.join(values)}"):
        return function(**values)


@dataclass(frozen=True)
class Key:
    """What a remembered result depends on, by name: JSON values. The list of configurations is not part of it."""

    kernel: str
    fields: Mapping[str, Any]
    exact: bool = field(compare=False)  # equal keys surely mean equal programs

    @functools.cached_property
    def digest(self) -> str:
        """24 hexadecimal digits."""
        return short_digest(json.dumps([self.kernel, self.fields], sort_keys=True))

    def folder(self, root: Path) -> Path:
        """Where the results for this key lie under a cache folder."""
        return root / "autotune" / folder_name(self.kernel) / self.digest


def tuning_key(
    kernel: str,
    function: Any,
    values: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]],
    target: Any,
    measured: bool,
    *,
    shared: Collection[str] = (),
    inputs: Any = None,
    compile_options: Mapping[str, Any] | None = None,
    references: Sequence[Any] = (),
    policy: Mapping[str, Any] | None = None,
    device: int | None = None,
) -> Key | None:
    """The key of one call's tuning; None if it cannot be told for an argument, such as an object without a repr, or for
    a pass of the user's.

    function, values: the builder, and the arguments of the call by name, defaults and an eager call's tensors included.
    configs: of these only the names that all of them set count, in that their values and defaults do not. measured,
    device: see environment. shared: arguments that share a result (do_not_specialize). inputs: tensors of
    set_autotune_inputs. references: ref_prog and what else decides about right and wrong. policy: how is checked and
    timed, as JSON values.
    """
    tuned = set.intersection(*(set(config) for config in configs)) if configs else set()
    arguments = {n: canonical(v) for n, v in sorted(values.items()) if n not in tuned and n not in shared}
    if any(OPAQUE in text for text in arguments.values()):
        return None
    program = program_text(function, tuned)
    fields: dict[str, Any] = {
        "program": digest(program),
        "arguments": arguments,
        "inputs": canonical(inputs),
        "compile_options": canonical(dict(sorted((compile_options or {}).items()))),
        **environment(target, measured, device),
        "reference": digest(canonical(list(references))),
        "policy": dict(policy or {}),
    }
    if OPAQUE in fields["compile_options"]:
        return None
    exact = VAGUE not in "".join([program, *arguments.values(), fields["compile_options"]]) and not shared
    return Key(kernel, json.loads(json.dumps(fields)), exact)


def folder_name(kernel: str) -> str:
    """The name of a kernel's folder: letters, digits and underscores."""
    return re.sub(r"\W", "_", kernel, flags=re.ASCII)[:80] or "kernel"


def environment(target: Any, measured: bool, device: int | None = None) -> dict[str, Any]:
    """The key's fields that come from this machine. `measured`: whether times are taken on a GPU here (number `device`,
    else the current one); else what is remembered are estimates and verdicts, for which the GPU and its driver do not
    count."""
    fields: dict[str, Any] = {
        "target": str(target),
        "gpu": "",
        "sm_count": None,
        "driver": "",
        "tiledsl": __version__,
        "compiler": compiler_hash(),
        "triton": triton_version(),
        "ptxas": ptxas(),
    }
    if measured:
        import torch

        found = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
        fields.update(gpu=str(found.name), sm_count=int(found.multi_processor_count), driver=driver_version())
    return fields


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, with both values; fields of fields as `arguments.M`."""
    pairs: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys([*wanted, *stored]):
        old, new = stored.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            pairs.update({f"{name}.{inner}": pair for inner, pair in differences(old, new).items()})
        elif json.dumps(old) != json.dumps(new):
            pairs[name] = (old, new)
    return pairs


def difference_lines(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`field: stored value, now wanted value` for each field that differs."""
    return [f"{name}: {_shown(old)}, now {_shown(new)}" for name, (old, new) in differences(stored, wanted).items()]


def _shown(value: Any) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
