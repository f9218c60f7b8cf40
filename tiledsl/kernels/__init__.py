"""What users hold: kernels, and the functions that make them."""
