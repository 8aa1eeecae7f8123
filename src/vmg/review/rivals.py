"""Other methods for tables, each with the settings of its own documentation, behind one interface."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vmg.fit.design import Standardiser
from vmg.metrics import normal_scores
from vmg.tables.cells import TableError, listing, to_texts
from vmg.tables.columns import CategoryColumn
from vmg.tables.encoder import TableEncoder

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BASELINES", "BASE_RATE", "LEVELS", "RIVALS", "Forecast", "Rival", "RivalRows", "find_rivals"]

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


class Forecast(NamedTuple):
    """A normal distribution of each row; or quantiles at LEVELS, with their mean and spread."""

    mean: Array
    std: Array
    quantiles: Array | None = None  # [N, K]

    def score(self, y: Array, coverage: float) -> tuple[Array, Array, Array]:
        """Log density of the normal distribution and CRPS of each truth, and central intervals [N, 2]."""
        log_prob, crps, interval = normal_scores(y, self.mean, self.std, coverage)
        if self.quantiles is not None:
            error = y[:, None] - self.quantiles
            crps = 2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean(1)  # twice the pinball loss
            ends = [np.abs(LEVELS - level).argmin() for level in ((1 - coverage) / 2, (1 + coverage) / 2)]
            interval = self.quantiles[:, ends]
        return log_prob, crps, interval


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence warnings and messages of other packages during a comparison."""
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
    """Another method.

    ``numbers`` and ``classes`` make an unfitted estimator with scikit-learn's ``fit`` from the training rows, which say
    which columns are categories; None: the method has none.
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
    def version(self) -> str:
        """Version of its package."""
        return str(getattr(import_module(self.package), "__version__", None) or metadata.version(self.package))

    @_quietly()
    def predict_numbers(self, rows: RivalRows, y: Array, held: RivalRows) -> Forecast:
        """Fit to rows and predict others; without a spread of its own, that of errors on rows it was not fitted to."""
        assert self.numbers is not None
        X, X_held = self._taken(rows), self._taken(held)
        fitted, quantiles = self.numbers(rows).fit(X, y), None
        if self.quantiles is not None:
            quantiles = np.asarray(self.quantiles(fitted, X_held), dtype=float)
            mean, std = quantiles.mean(1), quantiles.std(1)
        elif self.moments is not None:
            mean, std = (np.asarray(part, dtype=float) for part in self.moments(fitted, X_held))
        else:
            mean = np.asarray(fitted.predict(X_held), dtype=float).reshape(-1)
            folds = KFold(min(FOLDS, len(y)), shuffle=True, random_state=0).split(y)
            cells, errors = X.iloc if self.takes_categories else X, []
            for inside, outside in islice(folds, 1 if self.slow else None):
                part = self.numbers(rows).fit(cells[inside], y[inside])
                errors.append(np.asarray(part.predict(cells[outside])).reshape(-1) - y[outside])
            std = np.full(len(mean), float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) or 1.0)
        return Forecast(mean, np.maximum(std, 1e-9 * (y.std() or 1)), quantiles)

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
        rival, why = RIVALS[name], ""
        if (rival.classes if classes else rival.numbers) is None:
            why = f"it does not predict {'classes' if classes else 'numbers'}"
        elif find_spec(rival.package) is None:
            source = {"laplace": "laplace-torch", "tabpfn": "tabpfn"}.get(name, "'vmg[rivals]'")
            why = f"the package {rival.package} is not installed (pip install {source})"
        elif not rival.has_weights():
            why = "its weights are not on this machine, and nothing is downloaded"
        if why:
            notes.append(f"{name} is left out: {why}.")
        else:
            usable[name] = rival
    return usable, notes


# -- each imported when it is used: a comparison needs only what it runs -----------------------------------------------


def _linear(classes: bool) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500) if classes else RidgeCV(PENALTIES))


def _fit_process(X: Array, y: Array) -> Any:
    """A Gaussian process of as many training rows, drawn at random, as it can take in reasonable time."""
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    chosen = np.random.default_rng(0).permutation(len(y))[:GP_ROWS]
    kernel = kernels.ConstantKernel() * kernels.Matern(np.ones(X.shape[1]), nu=2.5) + kernels.WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    return make_pipeline(StandardScaler(), process).fit(X[chosen], y[chosen])


def _maker(path: str, **options: Any) -> Callable[[RivalRows], Any]:
    """Make estimators of the class ``package.module.Class``; an option may be a function of the training rows."""
    module, _, name = path.rpartition(".")

    def make(rows: RivalRows) -> Any:
        given = {key: value(rows) if callable(value) else value for key, value in options.items()}
        return getattr(import_module(module), name)(**given)

    return make


def _both(stem: str, **options: Any) -> Rival:
    """A method whose classes are called ``stem`` and Regressor or Classifier."""
    numbers, classes = (_maker(f"{stem}{kind}", **options) for kind in ("Regressor", "Classifier"))
    return Rival(stem.partition(".")[0], numbers, classes)


def _texts(rows: RivalRows) -> list[str]:
    """Columns that CatBoost takes as categories."""
    return [name for name in rows.raw if rows.raw[name].dtype == object]


def _threads(rows: RivalRows) -> int:
    """PyTorch's number of threads: by itself pytabkit takes all processors, however busy they are."""
    return torch.get_num_threads()


def _ngboost_moments(fitted: Any, X: Any) -> tuple[Array, Array]:
    parameters = fitted.pred_dist(X).params
    return parameters["loc"], parameters["scale"]


def _tabpfn_weights() -> bool:
    """Whether weights of TabPFN are in its cache; nothing is downloaded for a comparison."""
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "tabpfn"
    return any(Path(os.environ.get("TABPFN_MODEL_CACHE_DIR", default)).glob("*.ckpt"))


class _DeepEnsemble:
    """Five networks that state mean and variance, with the settings of their paper [Lakshminarayanan et al. 2017].

    Rows are standardised, and there is one hidden layer of 50 units, as in most papers on tables.
    """

    settings: ClassVar[dict[str, Any]] = {"activation": torch.nn.ReLU, "rate": 0.1, "epochs": 40, "batch": 100}

    def fit(self, X: Array, y: NDArray[Any]) -> Self:
        self.units, self.target = Standardiser.fit(X), Standardiser.fit(y[:, None].astype(float))
        self.n_classes = 0 if y.dtype.kind == "f" else int(y.max()) + 1
        truth = torch.as_tensor(y) if self.n_classes else torch.as_tensor(self.target.transform(y[:, None])).float()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.learn(torch.utils.data.TensorDataset(self.inputs(X), truth))
        return self

    def inputs(self, X: Array) -> torch.Tensor:
        return torch.as_tensor(self.units.transform(X)).float()

    def learn(self, rows: torch.utils.data.TensorDataset) -> None:
        loss, outputs = (F.cross_entropy, self.n_classes) if self.n_classes else (_normal_loss, 2)
        self.networks = [self.train(rows, outputs, loss) for _ in range(5)]

    def train(self, rows: torch.utils.data.TensorDataset, outputs: int, loss: Any) -> torch.nn.Sequential:
        how, n_inputs = self.settings, rows.tensors[0].shape[1]
        layers = torch.nn.Linear(n_inputs, 50), how["activation"](), torch.nn.Linear(50, outputs)
        network = torch.nn.Sequential(*layers)
        optimiser = torch.optim.Adam(network.parameters(), lr=how["rate"])
        for _ in range(how["epochs"]):
            for x, y in torch.utils.data.DataLoader(rows, how["batch"] or len(rows), shuffle=True):
                optimiser.zero_grad()
                loss(network(x), y).backward()
                optimiser.step()
        return network

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean and standard deviation in the units of the targets."""
        mean, variance = (part.double().numpy() for part in self.moments(self.inputs(X)))
        return self.target.inverse(mean), self.target.scale * np.sqrt(variance)

    @torch.no_grad()
    def moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, variance = torch.stack([network(x) for network in self.networks]).unbind(-1)
        second = F.softplus(variance) + 1e-6 + mean**2
        return mean.mean(0), second.mean(0) - mean.mean(0) ** 2

    @torch.no_grad()
    def predict_proba(self, X: Array) -> Array:
        return torch.stack([network(self.inputs(X)) for network in self.networks]).softmax(-1).mean(0).double().numpy()


def _normal_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mean, variance = outputs.split(1, -1)
    return F.gaussian_nll_loss(mean, y, F.softplus(variance) + 1e-6)


class _Laplace(_DeepEnsemble):
    """A network with a Laplace approximation, tuned by its marginal likelihood as in the examples of laplace-torch."""

    settings: ClassVar[dict[str, Any]] = {"activation": torch.nn.Tanh, "rate": 1e-2, "epochs": 1000, "batch": None}

    def learn(self, rows: torch.utils.data.TensorDataset) -> None:
        from laplace import Laplace

        batches = torch.utils.data.DataLoader(rows, 256)
        if self.n_classes:
            network, how = self.train(rows, self.n_classes, F.cross_entropy), ("last_layer", "kron")
            self.model = Laplace(network, "classification", *how)
            self.model.fit(batches)
            self.model.optimize_prior_precision(method="marglik")
            return
        self.model = Laplace(self.train(rows, 1, F.mse_loss), "regression", "all", "full")
        self.model.fit(batches)
        log_prior, log_sigma = (torch.ones(1, requires_grad=True) for _ in range(2))
        optimiser = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
        for _ in range(100):
            optimiser.zero_grad()
            (-self.model.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
            optimiser.step()

    def moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, variance = (part.detach() for part in self.model(x))
        return mean[:, 0], variance[:, 0, 0] + self.model.sigma_noise.detach() ** 2

    def predict_proba(self, X: Array) -> Array:
        return self.model(self.inputs(X), link_approx="probit").detach().double().numpy()


RIVALS: dict[str, Rival] = {
    BASE_RATE: _both("sklearn.dummy.Dummy"),
    "linear": Rival("sklearn", lambda _: _linear(classes=False), lambda _: _linear(classes=True)),
    "gradient boosting": _both("sklearn.ensemble.HistGradientBoosting", random_state=0),
    "forest": _both("sklearn.ensemble.RandomForest", random_state=0),
    "gp": Rival(
        "sklearn",
        lambda _: SimpleNamespace(fit=_fit_process),
        moments=lambda fitted, X: fitted.predict(X, return_std=True),
    ),
    "catboost": replace(
        _both("catboost.CatBoost", random_seed=0, verbose=False, allow_writing_files=False, cat_features=_texts),
        takes_categories=True,
    ),
    "lightgbm": _both("lightgbm.LGBM", random_state=0, verbose=-1),
    "ngboost": Rival(
        "ngboost", _maker("ngboost.NGBRegressor", random_state=0, verbose=False), moments=_ngboost_moments
    ),
    "quantile forest": Rival(
        "quantile_forest",
        _maker("quantile_forest.RandomForestQuantileRegressor", random_state=0),
        quantiles=lambda fitted, X: fitted.predict(X, quantiles=LEVELS.tolist()),
    ),
    "realmlp": replace(_both("pytabkit.RealMLP_TD_", random_state=0, device="cpu", n_threads=_threads), slow=True),
    "tabm": replace(_both("pytabkit.TabM_D_", random_state=0, device="cpu", n_threads=_threads), slow=True),
    "deep ensemble": Rival(
        "torch", lambda _: _DeepEnsemble(), lambda _: _DeepEnsemble(), moments=lambda fitted, X: fitted.predict(X)
    ),
    "laplace": Rival(
        "laplace", lambda _: _Laplace(), lambda _: _Laplace(), moments=lambda fitted, X: fitted.predict(X)
    ),
    "tabpfn": replace(
        _both("tabpfn.TabPFN", random_state=0, device="cpu"),
        quantiles=lambda fitted, X: np.transpose(fitted.predict(X, output_type="quantiles", quantiles=LEVELS.tolist())),
        has_weights=_tabpfn_weights,
    ),
}
"""Every method that a table can be compared with, by the name that ``vmg compare --with`` takes."""
