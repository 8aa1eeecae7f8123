"""Classes with rejection
======================

A person decides where the model is unsure. Trains on half of scikit-learn's breast cancer table and shows how the
error falls as the least sure rows are passed on.

    python examples/unsure_rows.py
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from vmg import TableClassifier


def main() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)

    model = TableClassifier(random_state=0).fit(X_train, y_train)

    prediction = model.pred_dist(X_test)
    wrong = prediction.label != y_test
    print(f"{wrong.mean():.1%} of {len(y_test)} decisions are wrong when the model decides everything\n")
    print("passed on to a person   wrong among the rest")
    order = np.argsort(prediction.predictive_entropy)  # surest first
    for share in (0.0, 0.05, 0.1, 0.2, 0.3):
        kept = order[: round((1 - share) * len(order))]
        print(f"{share:>21.0%}   {wrong[kept].mean():>20.2%}")

    least_sure = order[-1]
    print(f"\nThe least sure row: probabilities {prediction.probabilities[least_sure].round(2)}, of its")
    print(
        f"{prediction.predictive_entropy[least_sure]:.2f} nats of doubt {prediction.mutual_information[least_sure]:.2f}"
    )
    print("would go away if the weights were known exactly.")

    decided = np.arange(1, len(order) + 1)
    plt.plot(decided / len(order), wrong[order].cumsum() / decided)
    plt.xlabel("share of rows that the model decides, surest first")
    plt.ylabel("share of wrong decisions")
    plt.show()


if __name__ == "__main__":
    main()
