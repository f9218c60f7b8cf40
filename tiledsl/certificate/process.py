"""Verify in a process of its own, which can be killed: a tuning must not wait for a checker that does not end.

The process gets the elaborated program as IR text. It answers with a line of JSON for each check, as they come, so that
what was found before its end counts.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiledsl.certificate.check import Check
from tiledsl.child_processes import ask_module, end_of

if TYPE_CHECKING:
    from tiledsl.certificate.report import Certificate
    from tiledsl.ir.pass_manager import Pass
    from tiledsl.kernels.kernel import Kernel

_ENTRY_POINT = "tiledsl.kernels.certify_worker"
END = "end"


def certify_apart(kernel: Kernel, timeout: float) -> Certificate:
    """The certificate of a kernel, made by another process, which is killed after `timeout` seconds.

    Where it is killed or ends without having finished, the certificate says so as something unknown.
    """
    from tiledsl.certificate.certify import certificate_of
    from tiledsl.ir.printer import print_op
    from tiledsl.passes.user_passes import types_in

    start = time.monotonic()
    task = {
        "text": print_op(kernel.program_root(), locations=True), "target": str(kernel.target),
        "pass_configs": dict(kernel.pass_configs), "resumed_after": kernel._resumed_after, "source": kernel.source,
    }  # fmt: skip
    checks: list[Check] = []
    try:
        text = json.dumps({**task, "passes": packed(types_in(kernel.pass_configs))})
    except Exception as error:  # an option that is no text, number or truth value; a class that cannot be sent
        reason = f"the program cannot be handed to another process: {error}"
    else:
        checks, reason = _asked(text, timeout)
    if reason:
        checks.append(Check("pass", "the verification", "unknown", reason))
    return certificate_of(kernel, checks, time.monotonic() - start)


def packed(types: Mapping[str, type[Pass]]) -> str:
    """Users' passes as text for a process that this one starts: see `unpacked`."""
    if not types:
        return ""
    from joblib.externals.loky.backend.reduction import dump  # by value what that process cannot import

    file = io.BytesIO()
    dump(dict(types), file)
    return base64.b64encode(file.getvalue()).decode()


def unpacked(text: str) -> dict[str, type[Pass]]:
    """What `packed` has packed, in the process that was started."""
    found: dict[str, type[Pass]] = pickle.loads(base64.b64decode(text)) if text else {}
    return found


def _asked(text: str, timeout: float) -> tuple[list[Check], str]:
    """The checks that the process made, and why they are not all; "" if they are."""
    answer = ask_module(_ENTRY_POINT, text.encode(), timeout, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    checks: list[Check] = []
    for line in answer.output.decode(errors="replace").split("\n")[:-1]:
        with contextlib.suppress(ValueError, TypeError):
            value = json.loads(line)
            if value == END:
                return checks, ""
            checks.append(Check(**value))
    if answer.in_time:
        return checks, f"the process that verifies ended with {end_of(answer.status)}"
    return checks, f"it did not end within {timeout:g} s"
