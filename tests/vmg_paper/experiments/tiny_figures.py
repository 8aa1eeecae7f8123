"""The two toy figures with tiny settings, each run once for all tests."""

import functools

from vmg_paper.experiments.toys import Settings

TINY = Settings(n_steps=20, n_draws=10, n_starts=2, n_epochs=2, n_chains=2, n_warmup=10, n_kept=8, n_points=21)


@functools.cache
def tiny_run(figure):
    """What a figure gives, and the names that were told while it ran."""
    told = []
    return figure.run(seed=1, settings=TINY, tell=told.append), tuple(told)
