"""Executes emitted source, host launcher included, in an algebra: stand-ins for torch, triton.language and Gluon."""
