"""How often a tuning that waits for events wakes up."""

WAKE_SECONDS = 0.25
"""Ctrl-C does not end a wait without a limit where the system tells another thread of it."""
