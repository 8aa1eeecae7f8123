"""A table as people have them: words, dates, thousands, percents, holes and columns of no use."""

import numpy as np
import pandas as pd

OPTIONS = {"hidden_layer_sizes": (8,), "n_members": 2, "max_iter": 20, "random_state": 0}
"""An estimator that fits in a fraction of a second."""


def houses(n=60, seed=0):
    rng = np.random.default_rng(seed)
    area = rng.uniform(40, 200, size=n)
    city = rng.choice(["Paris", "Rome", "Oslo"], size=n)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, size=n), unit="D")
    price = 1_000 * area + 20_000 * (city == "Rome") + 5_000 * rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "listing": [f"L{i:04d}" for i in range(n)],
            "area": np.where(np.arange(n) % 10 == 3, np.nan, area),
            "city": np.where(np.arange(n) % 12 == 5, None, city),
            "garden": rng.random(n) < 0.5,
            "sold": pd.Series(day).dt.strftime("%Y-%m-%d"),
            "tax": [f"{rate:.1f}%" for rate in rng.uniform(1, 9, size=n)],
            "income": [f"{int(income):,}" for income in rng.uniform(20_000, 90_000, size=n)],
            "country": "X",
            "empty": np.nan,
            "price": price.round(2),
        }
    )
    frame.loc[frame.index % 20 == 7, "price"] = np.nan
    return frame


def homes(n=60, seed=0):
    """The same with a target of two classes."""
    frame = houses(n, seed)
    kind = np.where(frame["price"].fillna(0) > 120_000, "dear", "cheap")
    return frame.drop(columns="price").assign(kind=kind)
