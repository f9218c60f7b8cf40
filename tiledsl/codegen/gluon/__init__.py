"""Gluon source (triton.experimental.gluon) for kernels that select-emitter has prepared.

One producer warp loads by TMA, and consumers share the block's rows.
"""
