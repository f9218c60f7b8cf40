from types import SimpleNamespace

import tiledsl


class Adapter:
    def __init__(self, func):
        self.func = func

    def __call__(self, *arguments):
        return self.func(*arguments)


class JITKernel:
    def __init__(self, func, out_idx=None):
        self.inner = tiledsl.compile(func, out_idx=out_idx)
        self.prim_func = SimpleNamespace(attrs={"global_symbol": self.inner.name})
        self.adapter = Adapter(lambda *arguments: self.inner(*arguments))
        self.torch_function = self.adapter.func

    @classmethod
    def from_database(cls, func, out_idx=None):
        return cls(func, out_idx)

    def __call__(self, *arguments, **keywords):
        return self.torch_function(*arguments, **keywords)

    def get_kernel_source(self, kernel_only=True):
        return self.inner.source
