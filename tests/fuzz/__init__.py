"""Random programs of the whole language, run by tiledsl and by an oracle that executes their text in plain Python.

The oracle (`numbers`, `memory`, `language`, `oracle`) imports nothing of tiledsl. `python -m tests.fuzz` runs it.
"""
