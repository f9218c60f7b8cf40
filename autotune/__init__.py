"""The autotuner: search space, compile pool, benchmark worker, measurement, cache. Imported as `tiledsl.autotuner`."""

if __name__ != "tiledsl.autotuner":
    raise ImportError(f"{__name__!r} is not a package of its own: write `import tiledsl.autotuner`", name=__name__)
