"""Configurations compiled in processes of their own, each distinct source and binary once."""
