"""Search with Optuna: an ask-and-tell strategy that users register, here with Optuna's samplers (pip install optuna).

Optuna proposes values of the tunables one by one, and learns from what each configuration takes. A proposal that is no
configuration of the space, or that the target's limits rule out, counts as pruned there.
"""

from __future__ import annotations

import optuna
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.autotuner import register_search

PROPOSALS = 50  # that are no configurations, after which the next one in the model's order is taken


class OptunaSearch:
    """Optuna's TPE sampler over a tuner's space: ask and tell, as tiledsl.autotuner.register_search wants."""

    def __init__(self, space, sampler=None):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.index = space, {self.named(config): place for place, config in enumerate(space.configs)}
        self.choices = {}
        for config in space.configs:
            for name, value in config.items():
                texts = self.choices.setdefault(name, [])
                if repr(value) not in texts:
                    texts.append(repr(value))
        self.study = optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(seed=space.seed))
        self.left = list(space.order)
        self.trials = {}

    @staticmethod
    def named(config):
        return frozenset((name, repr(value)) for name, value in config.items())

    def propose(self):
        """An index that was not proposed before, and Optuna's trial for it; None where all were."""
        for _ in range(PROPOSALS):
            trial = self.study.ask()
            values = {name: trial.suggest_categorical(name, texts) for name, texts in self.choices.items()}
            place = self.index.get(frozenset(values.items()))
            if place in self.left:
                return place, trial
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        if not self.left:
            return None
        place = self.left[0]
        self.study.enqueue_trial({name: repr(value) for name, value in self.space.configs[place].items()})
        trial = self.study.ask()
        for name, texts in self.choices.items():
            trial.suggest_categorical(name, texts)
        return place, trial

    def ask(self, n):
        found = []
        while len(found) < n and self.left:
            place, trial = self.propose()
            self.left.remove(place)
            self.trials[place] = trial
            found.append(place)
        return found

    def tell(self, index, value):
        if value is None:
            self.study.tell(self.trials.pop(index), state=optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(self.trials.pop(index), value)


register_search("optuna", OptunaSearch)


@tiledsl.autotune(
    configs=tiledsl.space(block_M=[16, 32, 64], block_N=[16, 32, 64], threads=[64, 128]),
    ref_prog=lambda A, B: A + B,
    search="optuna",
    max_trials=6,
)
@tiledsl.jit(out_idx=-1)
def add(M, N, block_M=None, block_N=None, threads=128):
    @T.prim_func
    def add(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), T.ceildiv(N, block_N), threads=threads) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                C[bx * block_M + i, by * block_N + j] = (
                    A[bx * block_M + i, by * block_N + j] + B[bx * block_M + i, by * block_N + j]
                )

    return add


def main(M=100, N=70):
    result = add(M, N)
    print(result.table())
    a, b = (torch.randn(M, N, device="cuda" if torch.cuda.is_available() else "cpu") for _ in range(2))
    torch.testing.assert_close(result(a, b), a + b)
    return result


if __name__ == "__main__":
    main()
