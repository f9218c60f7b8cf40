"""Random programs of the whole language, run by tiledsl and by an oracle that executes their text in plain Python.

The oracle (`dtypes`, `numbers`, `functions`, `memory`, `language`, `oracle`) imports nothing of tiledsl. Programs come
from `generator`, whose steps are in `writer`, `tile_steps` and `memory_steps`. `python -m tests.fuzz` runs them.
"""
