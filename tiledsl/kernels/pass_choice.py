"""The options of passes that a user chose, passes of the user's own among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledsl.launch_options import pass_options

_PLACES = ("after:", "before:")  # as passes/user_passes.py has them, which is loaded only where they occur


def chosen_passes(pass_configs: Mapping[str, Any] | None, passes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`pass_configs` with `passes`, {"after:pass-name": [MyPass()]}, among them: each as the text that stands for it in
    keys and files. TileError for what is no option, no place or no pass."""
    options = pass_options(pass_configs)
    if passes is None and not any(isinstance(key, str) and key.startswith(_PLACES) for key in options):
        return options
    from tiledsl.passes.user_passes import normalised

    return normalised(options, passes)
