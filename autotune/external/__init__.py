"""Tuned configurations in the files of other projects: read, looked up, written."""
