"""A winner that is verified: with verify=True, no configuration wins of which a check fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.certificate import Certificate
    from tiledsl.kernels.kernel import Kernel

_log = logging.getLogger("tiledsl")


def certified(
    trials: Sequence[Trial], choose: Callable[[], Trial | None], timeout: float, ranks: Ranks
) -> Trial | None:
    """The winner that `choose` finds once every configuration with a failed check is out; None if none is left.

    A certificate that an earlier run stored counts if it is of this source. timeout: seconds for each.
    """
    while (best := choose()) is not None:
        if certificate_of(best) is None:
            best.certificate = _made(best, timeout)
        best.certificate = ranks.exchange("the winner's certificate", best.certificate)[0]
        certificate = certificate_of(best)
        if certificate is None or certificate.ok:
            return best
        for trial in trials:
            if trial.ok and (trial is best or (trial.source_hash and trial.source_hash == best.source_hash)):
                trial.certificate = best.certificate
                trial.fail("disproved", certificate.reason)
    return None


def _made(trial: Trial, timeout: float) -> dict[str, Any] | None:
    from tiledsl.certificate.process import certify_apart

    try:
        return certify_apart(trial.kernel, timeout).data()
    except Exception as error:  # of the builder, which was called before
        _log.warning("autotune: the winner cannot be verified (%s: %s)", type(error).__name__, error)
        return None


def certificate_of(trial: Trial) -> Certificate | None:
    """The certificate of a trial, if it has one that makes sense and is of its source."""
    return parsed(trial.certificate, trial.source_hash)


def parsed(data: Mapping[str, Any] | None, source_hash: str) -> Certificate | None:
    """A stored certificate; None, which the log explains, if it makes no sense or is of another source."""
    if data is None:
        return None
    from tiledsl.certificate import Certificate

    try:
        certificate = Certificate.from_data(data)
    except TileError as error:
        _log.warning("autotune: a stored certificate is ignored: %s", error.message)
        return None
    if certificate.source != source_hash:
        _log.warning("autotune: a stored certificate of %s is ignored: its source is another one", certificate.kernel)
        return None
    return certificate


def attach(kernel: Kernel, data: Mapping[str, Any] | None, source_hash: str) -> None:
    """Give a kernel its stored certificate, if it is of this source."""
    found = parsed(data, source_hash)
    if found is not None:
        kernel.certificate = found
