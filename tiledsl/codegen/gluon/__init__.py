"""Gluon source (triton.experimental.gluon) for kernels that select-emitter has prepared: one TMA producer warp, and
consumers that share the block's rows."""
