"""Which tuning in context is going on in this thread or task. Imports nothing."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiledsl.autotuner.context.session import ContextSession

active: ContextVar[ContextSession | None] = ContextVar("tiledsl_tuning_in_context", default=None)
