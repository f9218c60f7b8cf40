def autotune(func=None, *, configs):
    def decorate(impl):
        def tuned(*arguments, **keywords):
            chosen = configs(*arguments, **keywords) if callable(configs) else configs
            assert len(chosen) == 1, "only the first configuration is wanted"
            return impl(*arguments, **keywords, __tune_params=chosen[0])

        return tuned

    return decorate
