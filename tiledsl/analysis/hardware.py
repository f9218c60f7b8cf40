"""Numbers of GPUs that passes and models count with. What differs from one to another says a Target."""

WARP = 32  # threads
WARPGROUP = 128  # threads, whose warps compute a product together
ASYNCHRONOUS_ROWS = 64  # of a product that tensor cores of sm_90 and later compute from shared memory
MAX_REGISTERS = 255  # a thread's, on NVIDIA from sm_35 on (CUDA guide) and the usable ones on CDNA
VECTOR = 128  # bits that a thread loads at once
BARRIER_BYTES = 1024  # more than all barriers and alignment take
MAX_ELEMENTS = 1 << 20  # of a tile: Triton's TRITON_MAX_TENSOR_NUMEL
# What a multiprocessor does in a cycle (CUDA guide, throughputs of compute capability 9.0).
FLOAT_LANES = 128
SPECIAL_LANES = 16  # exponentials, logarithms, roots
CACHE_BYTES = 64  # from the second-level cache

MEASURED_ARCH = 90  # on which choices have been measured
