"""Online updates
==============

Rows arrive in pieces, and output layers are conditioned on each piece exactly, in milliseconds.

    python examples/online_updates.py
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from vmg import TableRegressor
from vmg.metrics import rmse


def main() -> None:
    X, y = make_friedman1(n_samples=1_200, noise=1.0, random_state=0)
    X_test, y_test = X[900:], y[900:]

    model = TableRegressor(random_state=0)
    _, axes = plt.subplots()
    print("rows seen   RMSE   mean ignorance")
    for start in range(0, 900, 300):
        rows = slice(start, start + 300)
        model.partial_fit(X[rows], y[rows])  # only the new rows; the old ones could be gone
        prediction = model.pred_dist(X_test)
        print(f"{start + 300:>9}  {rmse(y_test, prediction.mean):5.2f}   {prediction.epistemic_std.mean():14.2f}")
        axes.hist(prediction.epistemic_std, bins=30, alpha=0.6, label=f"{start + 300} rows")
    axes.set(xlabel="ignorance: epistemic standard deviation of a test row", ylabel="test rows")
    axes.legend()
    plt.show()


if __name__ == "__main__":
    main()
