"""Kernels as files at every level that Triton has, and kernels that run from such a file instead of their source."""
