"""Tuned configurations as files that are made offline, shipped, and looked up at run time."""
