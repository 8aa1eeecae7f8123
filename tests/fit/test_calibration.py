"""Noise, inflation and tails, learned from errors whose distribution is known."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from vmg.fit.calibration import (
    FEWEST_DEGREES,
    HeldOut,
    HeldOutPredictions,
    MemberPredictions,
    calibrate,
    calibrate_classes,
)
from vmg.fit.design import Design, FitRows, Group
from vmg.fit.gaussian import inflate


def errors(n, noise, inflation, degrees, seed=0, variance=None):
    rng = np.random.default_rng(seed)
    u = rng.gamma(1.0, 1.0, n) if variance is None else np.full(n, variance)
    scale = np.sqrt(noise + inflation * u)
    return HeldOut(scale * rng.standard_t(degrees, n), u, np.ones(n))


@pytest.mark.parametrize(("noise", "inflation", "degrees"), [(1.0, 1.0, 10.0), (0.04, 3.0, 5.0), (2.0, 0.3, 30.0)])
def test_known_parts_are_recovered(noise, inflation, degrees):
    found = calibrate(errors(60_000, noise, inflation, degrees), None, 0.0)
    assert found.noise == pytest.approx(noise, rel=0.2)
    assert found.inflation == pytest.approx(inflation, rel=0.2)
    assert 1 / found.degrees == pytest.approx(1 / degrees, abs=0.03)


def test_regions_say_by_how_much_ignorance_must_be_inflated():
    folds = errors(4_000, 1.0, 1.0, 20.0, variance=1e-4)  # in folds nothing can be seen of it
    regions = errors(4_000, 1.0, 6.0, 20.0, seed=1)
    found = calibrate(folds, regions, 0.0)
    assert found.inflation == pytest.approx(6.0, rel=0.2) and found.noise == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("inflation", [0.25, 1.0, 4.0])
def test_variances_larger_than_all_that_were_checked_are_not_taken_down(inflation):
    variance = np.array([0.0, 1.0, 2.0, 3.0, 102.0])
    expected = inflation * variance + max(1 - inflation, 0.0) * np.array([0.0, 0.0, 0.0, 1.0, 100.0])
    np.testing.assert_allclose(inflate(variance, inflation, 2.0), expected)


def test_known_variances_are_those_of_held_out_rows():
    rng = np.random.default_rng(0)
    folds, regions = (
        HeldOut(rng.standard_normal(n), rng.uniform(0, top, n), np.ones(n)) for n, top in ((90, 1), (10, 9))
    )
    found = calibrate(folds, regions, 0.01).known
    assert np.mean(np.append(folds.variance, regions.variance) < found) == pytest.approx(0.95)
    assert calibrate(folds, None, 0.01).known == np.quantile(folds.variance, 0.95)


def test_units_do_not_matter():
    folds, regions = errors(500, 1.0, 2.0, 8.0), errors(200, 1.0, 4.0, 8.0, seed=1)
    plain = calibrate(folds, regions, 0.0)
    scaled = [HeldOut(100 * one.error, 1e4 * one.variance, one.weight) for one in (folds, regions)]
    found = calibrate(*scaled, 0.0)
    assert found.noise == pytest.approx(1e4 * plain.noise, rel=0.02)
    assert found.inflation == pytest.approx(plain.inflation, rel=0.02)


def test_weights_count_as_rows():
    one = errors(300, 1.0, 1.0, 10.0)
    weight = np.random.default_rng(1).integers(1, 4, 300)
    weighted = calibrate(one._replace(weight=weight.astype(float)), None, 0.0)
    repeated = calibrate(HeldOut(*(np.repeat(part, weight) for part in one)), None, 0.0)
    assert weighted.noise == pytest.approx(repeated.noise, rel=0.05)
    assert weighted.inflation == pytest.approx(repeated.inflation, rel=0.2)


@pytest.mark.parametrize("error", [np.zeros(20), np.full(20, 1e-12), np.full(20, 1e9)])
def test_strange_errors_give_finite_parts(error):
    found = calibrate(HeldOut(error, np.full(20, 0.1), np.ones(20)), None, 0.0)
    assert np.isfinite([found.noise, found.inflation, found.degrees]).all()
    assert found.noise > 0 and found.inflation > 0 and found.degrees >= FEWEST_DEGREES


def test_no_rows_in_regions_are_no_regions():
    folds = errors(100, 1.0, 1.0, 10.0)
    assert calibrate(folds, HeldOut(*(np.zeros(0),) * 3), 0.0) == calibrate(folds, None, 0.0)


def test_degrees_that_are_asked_for_stay_and_noise_is_at_least_what_members_found():
    found = calibrate(errors(500, 0.01, 1.0, 10.0), errors(20, 0.01, 1.0, 10.0, seed=10), 0.5, 7.0)
    assert found.degrees == 7.0 and found.noise >= 0.5 * (1 - 1e-9)


def test_the_calibration_is_the_optimum_of_its_loss():
    """SciPy's simplex search on the loss as it is written in the module's first lines, to many digits."""
    folds, regions = errors(60, 0.09, 2.0, 5.0), errors(30, 0.09, 4.0, 5.0, seed=1)

    def loss(values):
        noise, inflation, degrees = np.exp(values[0]), np.exp(values[1]), 3 + np.exp(values[2])
        total = 0.5 * (10 * values[1] ** 2 + 3 * ((values[2] - 2) / 2) ** 2) / 60
        for rows in (folds, regions):
            scale = np.sqrt(noise + inflation * rows.variance)
            total -= stats.t.logpdf(rows.error, degrees, scale=scale).mean()
        return total

    best = optimize.minimize(loss, [-2.0, 0.0, 2.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    found = calibrate(folds, regions, 0.0)
    at = [np.log(found.noise), np.log(found.inflation), np.log(found.degrees - 3)]
    assert loss(at) == pytest.approx(best.fun, abs=1e-5)


@pytest.mark.parametrize("too_large", [0.5, 1.05, 3.0])
def test_factors_of_logits_are_where_no_other_factors_are_better(too_large):
    """Logits that are too large by a factor, one fold of all rows: the search must leave its start, however near."""
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(400, 3))
    y = np.array([rng.choice(3, p=special.softmax(one)) for one in logits])
    x, everyone = np.zeros((401, 2)), np.ones(401, dtype=bool)
    design = Design((Group(np.arange(2), np.arange(401) < 400, region=False),), 2, everyone)
    loc = too_large * np.stack([logits, logits + 0.1 * rng.normal(size=logits.shape)])
    said = MemberPredictions(loc, np.full((2, 400), 0.2), np.zeros((2, 0)))
    rows = FitRows(x, np.append(y, 0), np.ones(401), design, rng, None)

    def loss(log_sharpness, log_inflation):
        noise = np.random.default_rng(7).standard_normal((32, 2, 1, 3))  # the draws of the seed
        values = np.exp(log_sharpness) * loc + np.sqrt(0.2 * np.exp(log_inflation)) * noise
        p = special.softmax(values, -1).mean((0, 1))[np.arange(400), y]
        return -np.log(p).mean() + 0.5 * 3 / 400 * (log_sharpness**2 + (log_inflation / 2) ** 2)

    found = calibrate_classes(HeldOutPredictions(said, rows, np.arange(400)), 7)
    best = optimize.minimize(lambda values: loss(*values), [0.0, 0.0], method="BFGS").fun
    assert loss(np.log(found.sharpness), np.log(found.inflation)) == pytest.approx(best, abs=2e-5)
