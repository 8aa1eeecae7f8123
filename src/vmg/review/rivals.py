"""Other methods for tables, each with the settings of its own documentation, behind one interface."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.model_selection import KFold

from vmg.fit.design import Standardiser
from vmg.metrics import normal_scores
from vmg.tables.cells import TableError, listing, to_texts
from vmg.tables.columns import CategoryColumn
from vmg.tables.encoder import TableEncoder

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BASELINES", "BASE_RATE", "LEVELS", "RIVALS", "Normal", "Quantiles", "Rival", "RivalRows", "find_rivals"]

Array = NDArray[np.float64]

BASE_RATE = "base rate"
BASELINES = (BASE_RATE, "linear", "gradient boosting")  # of scikit-learn, beside every held-out score
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 3  # of the training rows, whose errors are the spread of a method that states none
GP_ROWS = 1000  # most training rows of an exact Gaussian process; more take minutes
LEVELS = np.arange(1, 100) / 100  # of methods that predict quantiles


class RivalRows(NamedTuple):
    """Rows of a table as other methods take them."""

    encoded: Array  # numbers alone, categories one-hot
    raw: pd.DataFrame  # categories as texts

    @classmethod
    def of(cls, encoder: TableEncoder, frame: pd.DataFrame) -> RivalRows:
        """The rows of a table, read by an encoder without target statistics."""
        encoded = encoder.transform(frame)
        columns: dict[str, Any] = {}
        for column, block in zip(encoder.columns, np.split(encoded, np.cumsum(encoder.widths)[:-1], 1), strict=True):
            if isinstance(column, CategoryColumn):
                columns[column.name] = to_texts(frame[column.name]).fillna("").astype(str).to_numpy(dtype=object)
            else:
                columns |= dict(zip(column.feature_scales, block.T, strict=True))
        return cls(encoded, pd.DataFrame(columns))


class Normal(NamedTuple):
    """A normal distribution of each row."""

    mean: Array
    std: Array

    def score(self, y: Array, coverage: float) -> tuple[Array, Array, Array]:
        """Log density and CRPS of each truth, and central intervals [N, 2]."""
        return normal_scores(y, self.mean, self.std, coverage)


class Quantiles(NamedTuple):
    """Quantiles of each row at LEVELS; log densities are of the normal distribution with their mean and spread."""

    values: Array  # [N, K]

    @property
    def mean(self) -> Array:
        """Mean of each row."""
        return self.values.mean(1)

    def score(self, y: Array, coverage: float) -> tuple[Array, Array, Array]:
        """Log density and CRPS of each truth, and central intervals [N, 2]."""
        error, std = y[:, None] - self.values, self.values.std(1)
        crps = 2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean(1)  # twice the pinball loss
        ends = [np.interp(level, LEVELS, np.arange(len(LEVELS))) for level in ((1 - coverage) / 2, (1 + coverage) / 2)]
        interval = np.stack([self.values[:, round(end)] for end in ends], 1)
        return Normal(self.mean, np.maximum(std, 1e-9 * (y.std() or 1))).score(y, coverage)[0], crps, interval


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what other packages say of their own devices, future and length scales out of a comparison."""
    lightning = logging.getLogger("lightning.pytorch")
    level = lightning.level
    lightning.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        lightning.setLevel(level)


@dataclass(frozen=True)
class Rival:
    """A method of others.

    ``numbers`` and ``classes`` make an unfitted estimator with scikit-learn's ``fit``; None: the method has none. It
    gets the training rows, so that it can be told which columns are categories.
    """

    package: str
    numbers: Callable[[RivalRows], Any] | None
    classes: Callable[[RivalRows], Any] | None = None
    takes_categories: bool = False
    moments: Callable[[Any, Any], tuple[Any, Any]] | None = None  # mean and std; None: one spread for all rows
    quantiles: Callable[[Any, Any], Any] | None = None  # [N, K] at LEVELS
    has_weights: Callable[[], bool] = lambda: True  # of a method that was trained before
    slow: bool = False  # the errors of one fold must do

    @property
    def installed(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.package) is not None

    @property
    def source(self) -> str:
        """The argument of pip install."""
        return {"laplace": "laplace-torch", "tabpfn": "tabpfn"}.get(self.package, "'vmg[rivals]'")

    @property
    def version(self) -> str:
        """Version of its package."""
        return str(getattr(import_module(self.package), "__version__", None) or metadata.version(self.package))

    @_quietly()
    def predict_numbers(self, rows: RivalRows, y: Array, held: RivalRows) -> Normal | Quantiles:
        """Fit to rows and predict others; without a spread of its own, that of errors on rows it was not fitted to."""
        assert self.numbers is not None
        X, X_held = self._taken(rows), self._taken(held)
        fitted = self.numbers(rows).fit(X, y)
        if self.quantiles is not None:
            return Quantiles(np.asarray(self.quantiles(fitted, X_held), dtype=float))
        if self.moments is not None:
            mean, std = self.moments(fitted, X_held)
            return Normal(
                np.asarray(mean, dtype=float), np.maximum(np.asarray(std, dtype=float), 1e-9 * (y.std() or 1))
            )
        folds, errors = KFold(min(FOLDS, len(y)), shuffle=True, random_state=0).split(y), []
        for inside, outside in islice(folds, 1 if self.slow else None):
            part = self.numbers(rows).fit(_rows(X, inside), y[inside])
            errors.append(np.asarray(part.predict(_rows(X, outside))).reshape(-1) - y[outside])
        mean = np.asarray(fitted.predict(X_held), dtype=float).reshape(-1)
        return Normal(mean, np.full(len(mean), float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) or 1.0))

    @_quietly()
    def predict_classes(self, rows: RivalRows, places: NDArray[np.int64], held: RivalRows) -> Array:
        """Fit to rows whose classes are 0, 1, ..., and predict others: probabilities [N, classes]."""
        assert self.classes is not None
        fitted = self.classes(rows).fit(self._taken(rows), places)
        return np.asarray(fitted.predict_proba(self._taken(held)), dtype=float)

    def _taken(self, rows: RivalRows) -> Any:
        return rows.raw if self.takes_categories else rows.encoded


def find_rivals(names: Iterable[str], *, classes: bool) -> tuple[dict[str, Rival], list[str]]:
    """The methods of these names that can be run here, and a sentence for each that cannot."""
    usable, notes = {}, []
    for name in dict.fromkeys(name.replace("-", " ") for name in names):
        if name not in RIVALS:
            raise TableError(f"there is no method '{name}' to compare with; there are {listing(list(RIVALS))}")
        rival = RIVALS[name]
        if (rival.classes if classes else rival.numbers) is None:
            notes.append(f"{name} is left out: it does not predict {'classes' if classes else 'numbers'}.")
        elif not rival.installed:
            notes.append(
                f"{name} is left out: the package {rival.package} is not installed (pip install {rival.source})."
            )
        elif not rival.has_weights():
            notes.append(f"{name} is left out: its weights are not on this machine, and nothing is downloaded.")
        else:
            usable[name] = rival
    return usable, notes


def _rows(X: Any, places: NDArray[np.int64]) -> Any:
    return X.iloc[places] if isinstance(X, pd.DataFrame) else X[places]


# -- makers: imported when they are used, so that a comparison needs only what it runs --------------------------------


def _dummy(classes: bool) -> Any:
    from sklearn import dummy

    return dummy.DummyClassifier() if classes else dummy.DummyRegressor()


def _linear(classes: bool) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500) if classes else RidgeCV(PENALTIES))


def _boosting(classes: bool) -> Any:
    from sklearn import ensemble

    kind = ensemble.HistGradientBoostingClassifier if classes else ensemble.HistGradientBoostingRegressor
    return kind(random_state=0)


def _forest(classes: bool) -> Any:
    from sklearn import ensemble

    return (ensemble.RandomForestClassifier if classes else ensemble.RandomForestRegressor)(random_state=0)


class _Networks:
    """Networks of PyTorch on standardised rows, with one hidden layer of 50 units, as most papers have for tables."""

    def fit(self, X: Array, y: NDArray[Any]) -> Self:
        self.units = Standardiser.fit(X)
        self.n_classes = 0 if y.dtype.kind == "f" else int(y.max()) + 1
        self.target = Standardiser.fit(y[:, None].astype(float))
        truth = torch.as_tensor(y) if self.n_classes else torch.as_tensor(self.target.transform(y[:, None])).float()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.fit_rows(self.inputs(X), truth)
        return self

    def inputs(self, X: Array) -> torch.Tensor:
        return torch.as_tensor(self.units.transform(X)).float()

    def fit_rows(self, x: torch.Tensor, y: torch.Tensor) -> None:
        raise NotImplementedError

    def in_units(self, mean: torch.Tensor, variance: torch.Tensor) -> tuple[Array, Array]:
        """Mean and standard deviation in the units of the targets."""
        scale = float(self.target.scale[0])
        return float(self.target.mean[0]) + scale * mean.double().numpy(), scale * variance.double().sqrt().numpy()


def _train(x: torch.Tensor, y: torch.Tensor, outputs: int, loss: Any, **how: Any) -> torch.nn.Sequential:
    """A network of one hidden layer, trained by Adam."""
    layers = torch.nn.Linear(x.shape[1], 50), how["activation"], torch.nn.Linear(50, outputs)
    network, rows = torch.nn.Sequential(*layers), torch.utils.data.TensorDataset(x, y)
    optimiser = torch.optim.Adam(network.parameters(), lr=how["rate"])
    for _ in range(how["epochs"]):
        for some_x, some_y in torch.utils.data.DataLoader(rows, how["batch"], shuffle=True):
            optimiser.zero_grad()
            loss(network(some_x), some_y).backward()
            optimiser.step()
    return network


class _DeepEnsemble(_Networks):
    """Five networks that state mean and variance, with the settings of their paper [Lakshminarayanan et al. 2017]."""

    def fit_rows(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss, outputs = (F.cross_entropy, self.n_classes) if self.n_classes else (_normal_loss, 2)
        how: dict[str, Any] = {"activation": torch.nn.ReLU(), "rate": 0.1, "epochs": 40, "batch": 100}
        self.networks = [_train(x, y, outputs, loss, **how) for _ in range(5)]

    @torch.no_grad()
    def outputs(self, X: Array) -> torch.Tensor:
        return torch.stack([network(self.inputs(X)) for network in self.networks])

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.outputs(X).unbind(-1)
        variance = F.softplus(variance) + 1e-6
        return self.in_units(mean.mean(0), (variance + mean**2).mean(0) - mean.mean(0) ** 2)

    def predict_proba(self, X: Array) -> Array:
        return self.outputs(X).softmax(-1).mean(0).double().numpy()


def _normal_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mean, variance = outputs.split(1, -1)
    return F.gaussian_nll_loss(mean, y, F.softplus(variance) + 1e-6)


class _Laplace(_Networks):
    """A network with a Laplace approximation, tuned by its marginal likelihood as in the examples of laplace-torch."""

    def fit_rows(self, x: torch.Tensor, y: torch.Tensor) -> None:
        from laplace import Laplace

        loss, outputs = (F.cross_entropy, self.n_classes) if self.n_classes else (F.mse_loss, 1)
        network = _train(x, y, outputs, loss, activation=torch.nn.Tanh(), rate=1e-2, epochs=1000, batch=len(x))
        rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 256)
        if self.n_classes:
            self.model = Laplace(network, "classification", subset_of_weights="last_layer", hessian_structure="kron")
            self.model.fit(rows)
            self.model.optimize_prior_precision(method="marglik")
            return
        self.model = Laplace(network, "regression", subset_of_weights="all", hessian_structure="full")
        self.model.fit(rows)
        log_prior, log_sigma = (torch.ones(1, requires_grad=True) for _ in range(2))
        optimiser = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
        for _ in range(100):
            optimiser.zero_grad()
            (-self.model.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
            optimiser.step()

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.model(self.inputs(X))
        noise = float(self.model.sigma_noise.detach()) ** 2
        return self.in_units(mean.detach()[:, 0], variance.detach()[:, 0, 0] + noise)

    def predict_proba(self, X: Array) -> Array:
        return self.model(self.inputs(X), link_approx="probit").detach().double().numpy()


def _tabpfn(classes: bool) -> Any:
    import tabpfn

    return (tabpfn.TabPFNClassifier if classes else tabpfn.TabPFNRegressor)(random_state=0, device="cpu")


def _tabpfn_weights() -> bool:
    """Whether weights of TabPFN are in its cache; nothing is downloaded for a comparison."""
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "tabpfn"
    return any(Path(os.environ.get("TABPFN_MODEL_CACHE_DIR", default)).glob("*.ckpt"))


class _FirstRows:
    """A Gaussian process of as many training rows, drawn at random, as it can take in reasonable time."""

    def __init__(self, n_features: int) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor, kernels
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        kernel = kernels.ConstantKernel() * kernels.Matern(np.ones(n_features), nu=2.5) + kernels.WhiteKernel(0.1)
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        self.pipeline = make_pipeline(StandardScaler(), process)

    def fit(self, X: Array, y: Array) -> _FirstRows:
        chosen = np.random.default_rng(0).permutation(len(y))[:GP_ROWS]
        self.pipeline.fit(X[chosen], y[chosen])
        return self

    def predict(self, X: Array) -> tuple[Array, Array]:
        return self.pipeline.predict(X, return_std=True)


def _catboost(rows: RivalRows, classes: bool) -> Any:
    import catboost

    texts = [name for name in rows.raw if rows.raw[name].dtype == object]
    kind = catboost.CatBoostClassifier if classes else catboost.CatBoostRegressor
    return kind(random_seed=0, verbose=False, allow_writing_files=False, cat_features=texts)


def _lightgbm(classes: bool) -> Any:
    import lightgbm

    return (lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor)(random_state=0, verbose=-1)


def _ngboost() -> Any:
    import ngboost

    return ngboost.NGBRegressor(random_state=0, verbose=False)


def _ngboost_moments(fitted: Any, X: Any) -> tuple[Array, Array]:
    parameters = fitted.pred_dist(X).params
    return parameters["loc"], parameters["scale"]


def _quantile_forest() -> Any:
    import quantile_forest

    return quantile_forest.RandomForestQuantileRegressor(random_state=0)


def _pytabkit(name: str) -> Rival:
    def make(classes: bool) -> Any:
        kind = f"{name}_{'Classifier' if classes else 'Regressor'}"
        n_threads = import_module("torch").get_num_threads()  # else one for each processor, however busy these are
        return getattr(import_module("pytabkit"), kind)(random_state=0, device="cpu", n_threads=n_threads)

    return _both("pytabkit", make, slow=True)


def _networks(package: str, kind: type[Any]) -> Rival:
    return Rival(package, lambda _: kind(), lambda _: kind(), moments=lambda fitted, X: fitted.predict(X))


def _both(package: str, make: Callable[[bool], Any], *, slow: bool = False) -> Rival:
    """A method for numbers and classes that takes numbers alone."""
    return Rival(package, lambda _: make(False), lambda _: make(True), slow=slow)


RIVALS: dict[str, Rival] = {
    BASE_RATE: _both("sklearn", _dummy),
    "linear": _both("sklearn", _linear),
    "gradient boosting": _both("sklearn", _boosting),
    "forest": _both("sklearn", _forest),
    "gp": Rival("sklearn", lambda rows: _FirstRows(rows.encoded.shape[1]), moments=lambda fitted, X: fitted.predict(X)),
    "catboost": Rival(
        "catboost",
        lambda rows: _catboost(rows, classes=False),
        lambda rows: _catboost(rows, classes=True),
        takes_categories=True,
    ),
    "lightgbm": _both("lightgbm", _lightgbm),
    "ngboost": Rival("ngboost", lambda _: _ngboost(), moments=_ngboost_moments),
    "quantile forest": Rival(
        "quantile_forest",
        lambda _: _quantile_forest(),
        quantiles=lambda fitted, X: fitted.predict(X, quantiles=LEVELS.tolist()),
    ),
    "realmlp": _pytabkit("RealMLP_TD"),
    "tabm": _pytabkit("TabM_D"),
    "deep ensemble": _networks("torch", _DeepEnsemble),
    "laplace": _networks("laplace", _Laplace),
    "tabpfn": Rival(
        "tabpfn",
        lambda _: _tabpfn(classes=False),
        lambda _: _tabpfn(classes=True),
        quantiles=lambda fitted, X: np.transpose(fitted.predict(X, output_type="quantiles", quantiles=LEVELS.tolist())),
        has_weights=_tabpfn_weights,
    ),
}
"""Every method that a table can be compared with, by the name that ``vmg compare --with`` takes."""
