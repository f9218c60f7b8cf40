import inspect
from types import SimpleNamespace

from tilelang.jit.kernel import JITKernel


def compile(func, out_idx=None, target=None):
    return JITKernel(func, out_idx)


class JITImpl:
    def __init__(self, function, options):
        self.func, self.options, self.kernels = SimpleNamespace(orig_func=function), options, {}
        self.signature = inspect.signature(function)

    def __call__(self, *arguments, **keywords):
        keywords.update(keywords.pop("__tune_params", {}))
        key = arguments, tuple(keywords.items())
        if key not in self.kernels:
            self.kernels[key] = self.compile(*arguments, **keywords)
        return self.kernels[key]

    def compile(self, *arguments, **keywords):
        return compile(self.func.orig_func(*arguments, **keywords), **self.options)


def jit(function=None, **options):
    return JITImpl(function, options) if function is not None else lambda inner: JITImpl(inner, options)
