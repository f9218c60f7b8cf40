"""How select-emitter prepares kernels for the Gluon emitter, and how lower-to-triton lowers them."""
