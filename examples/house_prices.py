"""House prices with intervals
===========================

What a house will sell for, and how sure that is. The table is simulated (400 houses), so that the example runs
anywhere: price depends on size, age and distance to the centre, and sellers of large houses differ more among
themselves.

    python examples/house_prices.py
"""

import matplotlib.pyplot as plt
import numpy as np

from vmg import TableRegressor
from vmg.metrics import interval_coverage, rmse


def simulate(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 3] (square metres, years, kilometres) and prices [n] in thousands."""
    size = rng.uniform(40, 220, n)
    age = rng.uniform(0, 90, n)
    distance = rng.exponential(6, n)
    price = 2.9 * size * np.exp(-0.06 * distance) * (1 - 0.004 * age) + 40
    return np.column_stack([size, age, distance]), price + rng.normal(0, 0.12 * size)


def main() -> None:
    rng = np.random.default_rng(0)
    X, y = simulate(400, rng)
    X_new, y_new = simulate(200, rng)

    model = TableRegressor(random_state=0).fit(X, y)

    prediction = model.pred_dist(X_new)
    interval = model.predict_interval(X_new, coverage=0.9)
    print(f"RMSE {rmse(y_new, prediction.mean):.1f} thousand")
    print(f"{interval_coverage(y_new, interval):.0%} of prices are inside their 90 % interval\n")
    print(f"{'size':>6} {'age':>5} {'km':>5} {'price':>7}   90 % interval    noise  ignorance")
    for i in range(6):
        low, high = interval[i]
        print(
            f"{X_new[i, 0]:6.0f} {X_new[i, 1]:5.0f} {X_new[i, 2]:5.1f} {prediction.mean[i]:7.0f}   "
            f"{low:5.0f} to {high:5.0f}   {prediction.aleatoric_std[i]:6.1f} {prediction.epistemic_std[i]:9.1f}"
        )

    palace = np.array([[900.0, 10.0, 2.0]])  # four times larger than anything in the table
    unusual = model.pred_dist(palace)
    times = unusual.epistemic_std[0] / np.median(prediction.epistemic_std)
    print(f"\nA palace of 900 square metres: {unusual.mean[0]:.0f} ± {unusual.std[0]:.0f} thousand;")
    print(f"ignorance is {times:.0f} times that of a usual house.")

    model.plot.intervals(X_new, y_new)
    plt.show()


if __name__ == "__main__":
    main()
