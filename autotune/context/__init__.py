"""Tuning kernels where they are called: inside a function that runs again and again. See decorator."""
