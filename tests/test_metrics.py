import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, roc_auc_score

from vmg.metrics import (
    auroc,
    brier_score,
    calibration_curve,
    crps_from_samples,
    debiased_calibration_error,
    energy_score,
    error_rate,
    expected_calibration_error,
    interval_coverage,
    interval_score,
    interval_width,
    log_likelihood,
    rejection_curve,
    rmse,
)

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]])
LABELS = np.array([0, 1, 0, 2])


@pytest.mark.parametrize(
    ("score", "arguments", "expected"),
    [
        (rmse, ([1, 2, 3], [1, 4, 1]), np.sqrt(8 / 3)),
        (rmse, ([1, 2], [1, 2]), 0),
        (log_likelihood, ([-1, -3],), -2),
        (log_likelihood, ([0, -np.inf],), -np.inf),
        (interval_coverage, ([1, 2.1, -100, 4], [[0, 1], [0, 2], [-np.inf, 3], [4, 4]]), 0.75),
        (interval_width, ([[0, 1], [0, 2], [4, 4]],), 1),
        (interval_width, ([[0, 1], [-np.inf, 3]],), np.inf),
        (interval_score, ([1, 5, -3], [[0, 2], [0, 4], [-1, 1]], 0.9), (2 + 4 + 2 + 20 * (1 + 2)) / 3),
        (crps_from_samples, ([[1.0, 5.0]], [0.0, 7.0]), 1.5),  # of one sample, the absolute error
        # two bins: confidences 0.4 and 0.5 in (0, 0.5], both wrong; 0.7 and 0.8 in (0.5, 1], both right
        (expected_calibration_error, (PROBS, LABELS, 2), (0.9 + 0.5) / 4),
        (expected_calibration_error, (np.eye(3), [0, 1, 2]), 0),
        (expected_calibration_error, (np.eye(3), [1, 2, 0]), 1),
        (brier_score, (PROBS, LABELS), (0.09 + 0.04 + 0.01 + 0.06 + 0.49 + 0.09 + 0.16 + 0.25 + 0.0625 + 0.5625) / 4),
        (brier_score, (np.eye(2), [0, 1]), 0),
        (brier_score, (np.eye(2), [1, 0]), 2),
        (error_rate, (PROBS, LABELS), 1 - accuracy_score(LABELS, PROBS.argmax(axis=1))),
    ],
)
def test_scores_by_hand(score, arguments, expected):
    assert score(*arguments) == pytest.approx(expected)


def test_crps_is_the_direct_double_sum():
    random = np.random.default_rng(0)
    samples, y = random.normal(size=(31, 7)), random.normal(size=7)
    samples[3] = samples[4]  # ties
    to_target = np.abs(samples - y).mean(axis=0)
    to_each_other = np.abs(samples[:, None] - samples[None, :]).mean(axis=(0, 1))
    assert crps_from_samples(samples, y) == pytest.approx(np.mean(to_target - to_each_other / 2), rel=1e-12)


@given(hnp.arrays(float, (9, 4), elements=st.floats(-1e6, 1e6)), st.floats(-1e6, 1e6))
def test_crps_is_never_negative_and_moves_with_the_origin(samples, shift):
    y = np.arange(4.0)
    score = crps_from_samples(samples, y)
    assert score >= -1e-9
    assert crps_from_samples(samples + shift, y + shift) == pytest.approx(score, rel=1e-6, abs=1e-6)


def test_calibration_curve_counts_what_lies_at_or_below():
    observed = calibration_curve([0.1, 0.5, 0.5, 0.9], [0, 0.1, 0.5, 0.7, 1])
    assert observed.tolist() == [0, 0.25, 0.75, 0.75, 1]


def test_expected_calibration_error_is_small_for_calibrated_probabilities():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(4), size=40_000)
    labels = (probs.cumsum(axis=1) < random.uniform(size=(40_000, 1))).sum(axis=1)
    assert expected_calibration_error(probs, labels) < 0.01
    overconfident = probs**3 / (probs**3).sum(axis=1, keepdims=True)
    assert expected_calibration_error(overconfident, labels) > 0.1


def test_rejection_curve_by_hand():
    rejected, accuracy = rejection_curve([0.1, 0.9, 0.5, 0.3], [True, False, False, True])
    np.testing.assert_allclose(rejected, [0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(accuracy, [0.5, 2 / 3, 1, 1])


def test_rejection_among_equals_is_in_random_order():
    uncertainty, correct = np.array([0.2, 0.2, 0.2, 0.7, 0.7]), np.array([1, 0, 1, 1, 0])
    random = np.random.default_rng(0)
    curves = []
    for _ in range(4000):
        order = random.permutation(5)
        by_uncertainty = order[np.argsort(uncertainty[order], kind="stable")]
        curves.append((np.cumsum(correct[by_uncertainty]) / np.arange(1, 6))[::-1])
    _, accuracy = rejection_curve(uncertainty, correct)
    np.testing.assert_allclose(accuracy, np.mean(curves, axis=0), atol=4 * 0.5 / np.sqrt(4000))
    _, reordered = rejection_curve(uncertainty[::-1], correct[::-1])
    np.testing.assert_allclose(reordered, accuracy)


@given(
    hnp.arrays(float, st.integers(1, 30), elements=st.integers(-5, 5).map(float)),
    hnp.arrays(float, st.integers(1, 30), elements=st.integers(-5, 5).map(float)),
)
def test_auroc_is_scikit_learns(negative, positive):
    labels = np.concatenate([np.zeros(len(negative)), np.ones(len(positive))])
    expected = roc_auc_score(labels, np.concatenate([negative, positive]))
    assert auroc(negative, positive) == pytest.approx(expected)
    assert auroc(positive, negative) == pytest.approx(1 - expected)


@pytest.mark.parametrize(
    ("score", "arguments", "message"),
    [
        (rmse, ([1, 2], [1]), r"mean must have shape \(2\).*got shape \(1,\)"),
        (rmse, ([[1, 2]], [1, 2]), r"y must have shape \(n_data\).*got shape \(1, 2\)"),
        (rmse, ([], []), r"not be empty; got shape \(0,\)"),
        (rmse, ([np.nan], [1]), "y must not hold NaN or infinity"),
        (log_likelihood, ([np.nan],), "log_prob must not hold NaN$"),
        (interval_coverage, ([1, 2], [[0, 1]]), r"interval must have shape \(2, 2\).*got shape \(1, 2\)"),
        (interval_width, ([[0, 1, 2]],), r"interval must have shape \(n_data, 2\).*got shape \(1, 3\)"),
        (interval_width, ([[0, 1], [3, 2]],), r"lower end first; got \[3\.0, 2\.0\] in row 1"),
        (
            crps_from_samples,
            (np.zeros((2, 3)), [1, 2]),
            r"samples must have shape \(n_samples, 2\).*got shape \(2, 3\)",
        ),
        (crps_from_samples, ([1, 2], [1, 2]), r"samples must have shape \(n_samples, 2\)"),
        (
            calibration_curve,
            ([0.5, 1.5], [0.5]),
            "cdf_values must be from 0 to 1; got values from 0.5 to 1.5",
        ),
        (calibration_curve, ([0.5], [50]), "levels must be from 0 to 1; got values from 50 to 50"),
        (expected_calibration_error, (PROBS, LABELS, 0), "n_bins must be at least 1; got 0"),
        (brier_score, ([[0.5, 0.2]], [0]), "must sum to 1; got sums from 0.7 to 0.7"),
        (brier_score, ([[2, -1]], [0]), "probs must be from 0 to 1; got values from -1 to 2"),
        (brier_score, (PROBS, LABELS[:3]), r"labels must have shape \(4\).*got shape \(3,\)"),
        (error_rate, (PROBS, [0, 1, 2, 3]), "whole numbers from 0 to 2; got 3"),
        (error_rate, (PROBS, [0, 1, 0.5, -1]), "whole numbers from 0 to 2; got -1, 0.5"),
        (rejection_curve, ([1, 2], [True]), r"correct must have shape \(2\)"),
        (rejection_curve, ([1, 2], [0, 0.5]), "correct must be whole numbers from 0 to 1; got 0.5"),
        (auroc, ([], [1]), "scores_negative must have shape"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(score, arguments, message):
    with pytest.raises(ValueError, match=message):
        score(*arguments)


# -- against slow sums and the package scoringrules -------------------------------------------------------------------


def test_energy_score_is_the_direct_double_sum_and_the_crps_of_one_output():
    rng = np.random.default_rng(0)
    samples, y = rng.gamma(2.0, 1.5, (30, 20, 3)), rng.gamma(2.0, 1.5, (20, 3))
    to_target = np.linalg.norm(samples - y, axis=-1).mean(0)
    to_each_other = np.linalg.norm(samples[:, None] - samples, axis=-1).mean((0, 1))
    assert energy_score(samples, y) == pytest.approx(np.mean(to_target - to_each_other / 2), rel=1e-12)
    one = crps_from_samples(samples[..., 0], y[:, 0])
    assert energy_score(samples[..., :1], y[:, :1]) == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize(
    ("scores", "parameters"),
    [("t", {"df": 5.0}), ("lognormal", {}), ("normal", {})],
)
def test_crps_and_log_density_of_predictions_are_those_of_scoringrules(scores, parameters):
    """Of our own distributions, whose CRPS is an integral and theirs a closed form."""
    rules = pytest.importorskip("scoringrules")
    from vmg.prediction import StudentPrediction, TransformedPrediction
    from vmg.prediction.transformed import LogTransform

    rng = np.random.default_rng(3)
    loc, scale = rng.normal(size=50), rng.uniform(0.2, 0.6, 50)
    degrees = parameters.get("df", 1e9)
    half = scale[:, None] / np.sqrt(2)
    prediction = StudentPrediction(loc[:, None], half, half, np.full(1, degrees), lambda: half.T[..., None])
    y = loc + scale * rng.standard_t(5, 50)
    if scores == "lognormal":
        prediction, y = TransformedPrediction(prediction, LogTransform(1e9)), np.exp(y)
    crps, surprise = (getattr(rules, f"{kind}_{scores}") for kind in ("crps", "logs"))
    given = (y, *parameters.values(), loc, scale)
    np.testing.assert_allclose(prediction.crps(y), crps(*given), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(-prediction.log_prob(y), surprise(*given), rtol=1e-5, atol=1e-6)


def test_interval_score_is_least_for_the_true_quantiles():
    rng = np.random.default_rng(5)
    y = rng.normal(size=20_000)
    scores = {z: interval_score(y, np.tile([-z, z], (len(y), 1)), 0.9) for z in (1.2, 1.45, 1.645, 1.85, 2.2)}
    assert min(scores, key=scores.get) == 1.645
    with pytest.raises(ValueError, match="coverage must be inside"):
        interval_score(y, np.tile([-1, 1], (len(y), 1)), 90)


def test_debiased_calibration_error_does_not_count_chance():
    """A calibrated model: the plain error is far from zero on few rows, squares of the debiased one average to zero."""
    rng = np.random.default_rng(6)
    plain, squares = [], []  # before these are cut off at zero
    for _ in range(300):
        p = rng.uniform(0.5, 1, 150)
        correct = rng.random(150) <= p
        probs, labels = np.column_stack([p, 1 - p]), (~correct).astype(int)
        plain.append(expected_calibration_error(probs, labels))
        inside = [(p > low / 15) & (p <= (low + 1) / 15) for low in range(15)]
        bins = [(one.sum(), correct[one].mean(), p[one].mean()) for one in inside if one.sum() > 1]
        total = sum(n * ((a - c) ** 2 - a * (1 - a) / (n - 1)) for n, a, c in bins)
        squares.append(total / sum(n for n, _, _ in bins))
        assert debiased_calibration_error(probs, labels) ** 2 == pytest.approx(max(squares[-1], 0.0), abs=1e-12)
    assert np.mean(plain) > 0.06 and abs(np.mean(squares)) < 3 * np.std(squares) / np.sqrt(300)
    overconfident = np.column_stack([np.full(400, 0.95), np.full(400, 0.05)])
    found = debiased_calibration_error(overconfident, (np.arange(400) % 4 == 0).astype(int))
    assert found == pytest.approx(0.2, abs=0.01)
