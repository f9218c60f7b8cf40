"""How long a tuning waits for an event before it looks around. Imports nothing."""

WAKE_SECONDS = 0.25
"""Ctrl-C does not end a wait without a limit where the system tells another thread of it."""
