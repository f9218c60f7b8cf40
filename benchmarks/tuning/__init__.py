"""What the autotuner takes and gives on a GPU: `python -m benchmarks.tuning --help`."""
