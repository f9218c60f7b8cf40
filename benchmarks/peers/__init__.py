"""What tiledsl is compared with, beside the kernels of benchmarks/handwritten."""
