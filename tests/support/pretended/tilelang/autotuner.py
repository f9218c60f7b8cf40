def autotune(func=None, *, configs):
    raise AssertionError("nothing is to be tuned")
