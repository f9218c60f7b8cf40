"""Benchmarks: `python -m benchmarks` measures tiledsl beside its peers on a GPU; see __main__.py."""
