"""What the logger `tiledsl` lets through, by the setting `log_level`."""

from __future__ import annotations

import logging
import sys

_DEFAULT = "warning"  # then the logger is as the program has it
_logger = logging.getLogger("tiledsl")
_before = logging.NOTSET


class _ToStderr(logging.Handler):
    """Prints where the program itself has not said where messages go, as Python does with warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


_handler = _ToStderr()


def apply(level: str) -> None:
    """Have the logger let through this level and those above; with the default, what it let through before."""
    global _before
    if level == _DEFAULT:
        _logger.removeHandler(_handler)
        _logger.setLevel(_before)
        return
    if _handler not in _logger.handlers:
        _before = _logger.level
        _logger.addHandler(_handler)
    _logger.setLevel(level.upper())
