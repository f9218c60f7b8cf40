"""What T.Kernel, a configuration and the pass lower-to-triton all may say of a launch."""

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Keywords of T.Kernel that Triton takes."""
