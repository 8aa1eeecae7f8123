"""Rows of a fit with held-out groups, for the tests of experts."""

import numpy as np

from vmg.fit.design import Design, FitRows, Group


def fit_rows(x, y, held_out=()):
    """Rows whose groups must not see ``held_out`` [G, N]."""
    groups = tuple(Group(np.array([g]), one, region=False) for g, one in enumerate(held_out))
    design = Design(groups, max(len(groups), 1), np.ones(len(x), dtype=bool))
    return FitRows(x, y, np.ones(len(x)), design, np.random.default_rng(0), None)
