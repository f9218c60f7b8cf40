"""The certificate of a kernel: what of its lowering is proved, what is tested, and what is unknown and why."""
