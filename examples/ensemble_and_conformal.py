"""An ensemble, and intervals that hold
====================================

An ensemble beside one of its networks, and intervals whose coverage holds in finite samples.

    python examples/ensemble_and_conformal.py
"""

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from vmg import TableRegressor
from vmg.metrics import interval_coverage, interval_width


def main() -> None:
    X, y = load_diabetes(return_X_y=True)
    X_rest, X_test, y_rest, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    X_train, X_calibration, y_train, y_calibration = train_test_split(X_rest, y_rest, test_size=0.25, random_state=0)

    for n_members in (1, "auto"):
        model = TableRegressor(n_members=n_members, random_state=0).fit(X_train, y_train)
        log_likelihood = model.pred_dist(X_test).log_prob(y_test).mean()
        print(f"n_members={n_members!r}: R2 {model.score(X_test, y_test):.3f}, log-likelihood {log_likelihood:.3f}")

    print("\n80 % intervals          coverage   mean width")
    for name in ("as predicted", "after conformalize"):
        if name == "after conformalize":
            model.conformalize(X_calibration, y_calibration)
        interval = model.predict_interval(X_test, coverage=0.8)
        print(f"{name:<22} {interval_coverage(y_test, interval):>9.1%} {interval_width(interval):>12.1f}")


if __name__ == "__main__":
    main()
