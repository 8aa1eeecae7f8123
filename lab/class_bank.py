"""Ways to train networks for classes, and boosted trees beside them, on training parts of development tables.

    VMG_DATA=../shared/data python lab/class_bank.py --rows 1000 --out /tmp/classes

Log loss on rows of the training part that no expert has seen, of the networks alone and of mixtures whose weights come
from rows that the experts of a fold have not seen. No test row is read.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import pandas as pd
import torch
from scipy import special
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold

from vmg.fit import classes as module
from vmg.fit.calibration import calibrate_classes
from vmg.fit.classes import ClassificationEnsemble, ClassificationMembers, MemberLogits
from vmg.fit.design import Design, InputRange, Standardiser, choose_size, squash
from vmg.fit.trainer import FitRows, train_ensembles
from vmg.math.evidence import log_precision_prior
from vmg.math.softmax_evidence import SoftmaxPosterior, improve, mean_probabilities

NAMES = [
    "contraceptive",
    "crx",
    "german",
    "heart",
    "ionosphere",
    "phoneme",
    "pima",
    "segment",
    "sonar",
    "spambase",
    "splice",
    "vehicle",
]


def load(name: str, rows: int):
    frame = pd.read_csv(Path(os.environ["VMG_DATA"]) / "tables" / "classification" / name / "data.csv.gz")
    y = np.unique(frame["class"].astype(str), return_inverse=True)[1]
    X = pd.get_dummies(frame.drop(columns="class")).astype(float)
    X = X.fillna(X.median()).to_numpy()
    train, _ = next(StratifiedKFold(4, shuffle=True, random_state=0).split(X, y))
    order = np.random.default_rng(5).permutation(train)
    n_fit = min(rows, round(0.7 * len(order)))
    return X[order[:n_fit]], y[order[:n_fit]], X[order[n_fit:][:1500]], y[order[n_fit:][:1500]]


# -- quicker training -------------------------------------------------------------------------------------------------


class _Objective(torch.autograd.Function):
    """The same objective, with variances that are kept and the penalty on some rows alone."""

    @staticmethod
    def forward(ctx, phi, precision, posterior, variance, labels, weight, some, scale):
        mean, covariance = posterior.mean, posterior.covariance
        K = labels.shape[-1]
        p = mean_probabilities(phi @ mean, variance)
        fit = (weight * (labels * p.clamp_min(1e-30).log()).sum(-1)).sum(-1)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        logdet = precision.log().sum(-1) - 2 * posterior.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        trace = (precision * diagonal).sum(-1) - precision.shape[-1]
        kl = 0.5 * (K * (trace - logdet) + (precision.unsqueeze(-1) * mean.square()).sum((-2, -1)))
        pull = ((labels - p) * weight.unsqueeze(-1)) @ mean.mT
        if some is not None:
            curvature = (p[:, some] * (1 - p[:, some])).sum(-1) * weight[:, some] * scale
            pull[:, some] -= curvature.unsqueeze(-1) * (phi[:, some] @ covariance)
        of_precision = 0.5 * (K * (1 / precision - diagonal) - mean.square().sum(-1))
        ctx.save_for_backward(pull, of_precision)
        return fit - kl

    @staticmethod
    def backward(ctx, outer):
        pull, of_precision = ctx.saved_tensors
        return pull * outer[..., None, None], of_precision * outer[..., None], *(None,) * 6


class QuickMembers(ClassificationMembers):
    share, every, checking = 8, 10, 3

    def log_posterior(self, x, y, weight):
        phi, labels = self.features(x), self._one_hot(y, x.dtype)
        with torch.no_grad():
            precision, values = self.prior_precision(), phi.detach()
            if self._posterior is None or self._n_steps % self.every == 0:
                self._posterior = improve(self._posterior, values, labels, precision, weight, 2)
                self._variance = self._posterior.variance(values)
            else:
                if self._variance.shape != weight.shape:
                    self._variance = self._posterior.variance(values)
                p = mean_probabilities(values @ self._posterior.mean, self._variance)
                moment = values.mT @ ((labels - p) * weight.unsqueeze(-1))
                pull = moment - precision.unsqueeze(-1) * self._posterior.mean
                moved = SoftmaxPosterior(
                    self._posterior.mean + torch.cholesky_solve(pull, self._posterior.majorant),
                    self._posterior.root,
                    self._posterior.majorant,
                )
                moved.__dict__["covariance"] = self._posterior.covariance
                self._posterior = moved
            self._n_steps += 1
            some, n = None, len(x)
            if self.share:
                some = torch.randint(n, (n // self.share,))
        value = _Objective.apply(
            phi, self.prior_precision(), self._posterior, self._variance, labels, weight, some, float(self.share)
        )
        return value + self.features.log_prior() + log_precision_prior(self.log_precision), value

    @torch.no_grad()
    def predict_held_out(self, x, y, seen):
        phi = self.features(x)
        labels, precision = self._one_hot(y, phi.dtype), self.prior_precision()
        posterior = improve(self._posterior, phi, labels, precision, seen, self.checking)
        return MemberLogits((phi @ posterior.mean).double().numpy(), posterior.variance(phi).double().numpy())


def networks(x, y, x_new, n_classes, size, seed, kind, **options):
    for name, value in options.items():
        setattr(kind, name, value)
    torch.manual_seed(0)

    def make():
        return kind(x.shape[1], size.hidden, n_classes, size.activations, size.n_members)

    [trained] = train_ensembles(make, [FitRows(x, y, None, seed)], size=size)
    held = trained.held
    rows = trained.held_out(held)
    trained_seconds = time.process_time()
    sharpness, inflation, _ = calibrate_classes(rows, y[held.index], np.ones(len(held.index)), seed)
    weight = torch.ones(size.n_members, len(x))
    final_steps = module.FINAL_STEPS
    posterior = trained.members.posterior(torch.as_tensor(trained.x), torch.as_tensor(y), weight, final_steps)
    ensemble = ClassificationEnsemble(
        trained.members,
        InputRange.of(trained.x),
        posterior.mean.contiguous(),
        posterior.root.contiguous(),
        sharpness,
        inflation,
    )
    ended = time.process_time()
    p_new = ensemble.sample_probabilities(x_new, 16, 0).mean(0)
    oof = np.full((len(x), n_classes), np.nan)
    rng = np.random.default_rng(0)
    for outside, loc, variance, factor in rows.of_groups(regions=False):
        noise = rng.standard_normal((32, len(loc), 1, n_classes))
        spread = np.sqrt(variance * factor * inflation)[..., None]
        oof[held.index[outside]] = special.softmax(sharpness * loc + spread * noise, -1).mean((0, 1))
    return oof, p_new, trained.design, trained.history.last.step, ended, ended - trained_seconds


def boosted(rate=0.1, n=100, leaves=8, smallest=10, l2=1.0, depth=None):
    return HistGradientBoostingClassifier(
        learning_rate=rate,
        max_iter=n,
        max_leaf_nodes=leaves,
        min_samples_leaf=smallest,
        l2_regularization=l2,
        early_stopping=False,
        random_state=0,
        max_depth=depth,
    )


def trees(x, y, x_new, n_classes, design: Design, make):
    def predict(model, rows):
        p = np.full((len(rows), n_classes), 1e-6)
        p[:, model.classes_] = np.maximum(model.predict_proba(rows), 1e-6)
        return p / p.sum(1, keepdims=True)

    oof = np.full((len(x), n_classes), np.nan)
    for group in design.groups:
        if not group.region:
            inside = ~group.held_out
            oof[group.held_out] = predict(make().fit(x[inside], y[inside]), x[group.held_out])
    return oof, predict(make().fit(x, y), x_new)


TREES = {
    "hgb": lambda: boosted(),
    "hgb-31": lambda: boosted(0.1, 100, 31, 20, 0.0),
    "hgb-slow": lambda: boosted(0.05, 150, 8, 10),
    "hgb-50": lambda: boosted(0.15, 50, 8, 10),
    "hgb-50-3": lambda: boosted(0.15, 50, 8, 10, 1.0, 3),
    "hgb-50-4": lambda: boosted(0.15, 50, 16, 10, 1.0, 4),
    "extra": lambda: ExtraTreesClassifier(100, min_samples_leaf=2, random_state=0),
}
NETWORKS = {
    "today": (ClassificationMembers, {}),
    "quick": (QuickMembers, {"share": 8, "every": 10, "checking": 3}),
    "no-penalty": (QuickMembers, {"share": 0, "every": 10, "checking": 3}),
}


def log_loss(p, y):
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def run(name, rows, out: Path, kinds, tree_kinds) -> None:
    X, y, X_new, y_new = load(name, rows)
    scaling = Standardiser.fit(X)
    x, x_new = scaling.transform(X), scaling.transform(X_new)
    K, size = int(y.max()) + 1, choose_size(len(x), classes=True)
    file = out / f"{name}-{rows}.npz"
    kept = dict(np.load(file)) if file.exists() else {}
    design = None
    for kind in kinds:
        started = time.process_time()
        oof, p_new, design, steps, ended, after = networks(
            x, y, x_new, K, size, 0, NETWORKS[kind][0], **NETWORKS[kind][1]
        )
        seconds = ended - started
        kept |= {f"{kind}.oof": oof, f"{kind}.new": p_new, f"{kind}.seconds": np.array(seconds)}
        print(
            f"{name:14s} {x.shape} K={K} {kind:12s} {seconds:5.1f}s (after {after:.1f}) "
            f"steps {steps} log loss {log_loss(p_new, y_new):.4f}",
            flush=True,
        )
    design = design or Design.choose(squash(x), size.n_members, np.random.default_rng(0), y)
    for kind in tree_kinds:
        started = time.process_time()
        oof, p_new = trees(x, y, x_new, K, design, TREES[kind])
        seconds = time.process_time() - started
        kept |= {f"{kind}.oof": oof, f"{kind}.new": p_new, f"{kind}.seconds": np.array(seconds)}
        print(
            f"{name:14s} {x.shape} K={K} {kind:12s} {seconds:5.1f}s log loss {log_loss(p_new, y_new):.4f}", flush=True
        )
    np.savez(file, **kept, y=y, y_new=y_new) if "y" not in kept else np.savez(file, **kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(NAMES))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--trees", default=",".join(TREES))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    for name in options.tables.split(","):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(
                name,
                options.rows,
                options.out,
                [k for k in options.networks.split(",") if k],
                [k for k in options.trees.split(",") if k],
            )


if __name__ == "__main__":
    main()
