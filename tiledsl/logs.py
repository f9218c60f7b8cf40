"""The logger `tiledsl`: its level, by the setting `log_level`, and messages that are logged only once."""

from __future__ import annotations

import logging
import sys
import threading

_DEFAULT = "warning"  # leaves the logger as the program has configured it
_logger = logging.getLogger("tiledsl")
_before = logging.NOTSET
_noted: set[str] = set()
_lock = threading.Lock()


def note_once(message: str, level: int = logging.INFO) -> None:
    """Log a message once in a process; at level info, such as that something has no effect here."""
    with _lock:
        if message in _noted:
            return
        _noted.add(message)
    _logger.log(level, "%s", message)


def warn_once(message: str) -> None:
    """Log a warning once in a process: a tuning does not repeat it for each configuration."""
    note_once(message, logging.WARNING)


class _ToStderr(logging.Handler):
    """Prints to stderr unless the program has configured logging itself, as Python does with warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


_handler = _ToStderr()


def apply(level: str) -> None:
    """Set the lowest level that is logged; with the default, restore the level that the program had set."""
    global _before
    if level == _DEFAULT:
        _logger.removeHandler(_handler)
        _logger.setLevel(_before)
        return
    if _handler not in _logger.handlers:
        _before = _logger.level
        _logger.addHandler(_handler)
    _logger.setLevel(level.upper())
