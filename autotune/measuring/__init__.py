"""Configurations run and timed on the devices, in processes that may crash or hang; the inputs that they run on."""
