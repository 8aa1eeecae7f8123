"""Other packages for tables, each as its own documentation uses it, around our estimators."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quick import ensemble_classifier, ensemble_regressor, linear_table


@pytest.fixture(scope="module")
def rows():
    X, y = linear_table(120)
    return X, np.asarray(y).reshape(-1)


@pytest.mark.works_with("MAPIE", "`SplitConformalRegressor(estimator=model)` and `CrossConformalRegressor`")
@pytest.mark.filterwarnings("ignore")
def test_mapie_conformalizes(rows):
    regression = pytest.importorskip("mapie.regression")
    X, y = rows
    split = regression.SplitConformalRegressor(ensemble_regressor(), confidence_level=0.9, prefit=False)
    _, interval = split.fit(X[:60], y[:60]).conformalize(X[60:], y[60:]).predict_interval(X)
    assert 0.8 < np.mean((interval[:, 0, 0] <= y) & (y <= interval[:, 1, 0])) <= 1
    fitted = ensemble_regressor().fit(X, y)
    point, interval = (
        regression.SplitConformalRegressor(fitted, confidence_level=0.9, prefit=True)
        .conformalize(X, y)
        .predict_interval(X)
    )
    np.testing.assert_allclose(point, fitted.predict(X), atol=0.5)
    assert ((interval[:, 0, 0] <= y) & (y <= interval[:, 1, 0])).mean() >= 0.9
    cross = regression.CrossConformalRegressor(ensemble_regressor(), confidence_level=0.9, cv=2)
    _, interval = cross.fit_conformalize(X, y).predict_interval(X[:5])
    assert interval.shape == (5, 2, 1)


@pytest.mark.works_with("crepes", "`WrapRegressor(model)`, `WrapClassifier(model)`")
def test_crepes_wraps(rows):
    crepes = pytest.importorskip("crepes")
    X, y = rows
    wrapped = crepes.WrapRegressor(ensemble_regressor())
    wrapped.fit(X[:60], y[:60])
    wrapped.calibrate(X[60:], y[60:])
    interval = wrapped.predict_int(X, confidence=0.9)
    assert 0.8 < np.mean((interval[:, 0] <= y) & (y <= interval[:, 1])) <= 1
    classes = crepes.WrapClassifier(ensemble_classifier())
    classes.fit(X[:60], y[:60] > 0)
    classes.calibrate(X[60:], y[60:] > 0)
    assert len(classes.predict_set(X[:5], confidence=0.9)) == 5


@pytest.mark.works_with(
    "skops", "`skops.io.dumps(model)`; a fitted model has no types of its own to trust but its class"
)
def test_skops_keeps_a_fitted_model(rows):
    io = pytest.importorskip("skops.io")
    X, y = rows
    model = ensemble_regressor().fit(X, y)
    kept = io.dumps(model)
    again = io.loads(kept, trusted=io.get_untrusted_types(data=kept))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.works_with("Optuna", "an objective that fits and returns `model.score`")
@pytest.mark.filterwarnings("ignore")
def test_optuna_searches(rows):
    optuna = pytest.importorskip("optuna")
    X, y = rows
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        model = ensemble_regressor(n_members=trial.suggest_int("n_members", 1, 2))
        return model.fit(X[:80], y[:80]).score(X[80:], y[80:])

    search = optuna.create_study(direction="maximize")
    search.optimize(objective, n_trials=2)
    assert search.best_value > 0


@pytest.mark.works_with("scikit-learn", "`Pipeline`, `GridSearchCV`, `cross_val_score`, `ColumnTransformer`, `clone`")
def test_scikit_learn_searches_through_a_pipeline(rows):
    X, y = rows
    scaled = make_column_transformer((StandardScaler(), [0]), remainder="passthrough")
    pipeline = make_pipeline(scaled, ensemble_regressor())
    search = GridSearchCV(pipeline, {f"{pipeline.steps[-1][0]}__n_members": [1, 2]}, cv=2).fit(X, y)
    assert search.best_score_ > 0


def test_weights_reach_the_fit_through_metadata_routing(rows):
    X, y = rows
    X, weight = pd.DataFrame(X).assign(c=["x", "y", "z"] * 40), np.where(np.arange(120) % 2, 1.0, 3.0)
    X.columns = X.columns.astype(str)
    with sklearn.config_context(enable_metadata_routing=True):
        model = ensemble_regressor().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        found = cross_validate(model, X, y, cv=2, params={"sample_weight": weight}, return_estimator=True)
    direct = ensemble_regressor().fit(X[60:], y[60:], weight[60:])
    np.testing.assert_allclose(found["estimator"][0].predict(X), direct.predict(X))


@pytest.mark.works_with("pandas, polars", "data frames in; `predict_frame` gives a data frame")
def test_frames_of_pandas_and_polars_give_the_same(rows):
    polars = pytest.importorskip("polars")
    X, y = rows
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    model = ensemble_regressor().fit(frame, y)
    np.testing.assert_array_equal(model.predict(polars.from_pandas(frame)), model.predict(frame))
    assert len(model.predict_frame(frame)) == len(frame)


@pytest.mark.works_with("shap", "`shap.KernelExplainer(model.predict, X)` and `shap.Explainer`")
@pytest.mark.filterwarnings("ignore")
def test_shap_explains_a_prediction(rows):
    shap = pytest.importorskip("shap")
    X, y = rows
    model = ensemble_regressor().fit(X, y)
    explainer = shap.KernelExplainer(model.predict, X[:10])
    shares = explainer.shap_values(X[:2], nsamples=64)
    np.testing.assert_allclose(shares.sum(1) + explainer.expected_value, model.predict(X[:2]), rtol=1e-4)


@pytest.mark.works_with(
    "mlflow",
    '`mlflow.sklearn.save_model(model, path, serialization_format="skops", skops_trusted_types=[...])` with '
    "`vmg.estimators.regressor.TableRegressor`",
)
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_fitted_model(rows, tmp_path):
    flavour, X = pytest.importorskip("mlflow.sklearn"), rows[0]
    model = ensemble_regressor().fit(*rows)
    trusted = ["vmg.estimators.regressor.TableRegressor"]
    flavour.save_model(model, tmp_path / "m", serialization_format="skops", skops_trusted_types=trusted)
    np.testing.assert_array_equal(flavour.load_model(str(tmp_path / "m")).predict(X), model.predict(X))
