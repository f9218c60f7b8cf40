"""Outputs compared with a reference that is computed once."""
