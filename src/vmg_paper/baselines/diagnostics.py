"""Have the chains converged, and how many independent draws are they worth?

Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), *Rank-normalization, folding, and localization* [V21].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

__all__ = ["bulk_ess", "split_rhat"]

Array = NDArray[np.float64]


def split_rhat(draws: Array) -> Array:
    """Rank-normalised split R̂ of draws [n, chains, ...]: 1 where all halves of all chains agree [V21, §4.1].

    The larger of that of the draws and that of their distance from the median, for chains may agree in location and
    differ in spread.
    """
    chains = _split(draws)
    folded = np.abs(chains - np.median(chains, axis=(0, 1)))
    return np.maximum(_rhat(_rank_normalise(chains)), _rhat(_rank_normalise(folded)))


def _rhat(chains: Array) -> Array:
    n = chains.shape[0]
    within = chains.var(0, ddof=1).mean(0)
    between = n * chains.mean(0).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that stand still: infinite, or NaN where all agree
        return np.sqrt((n - 1) / n + between / (n * within))


def bulk_ess(draws: Array) -> Array:
    """Effective number of draws [n, chains, ...] for estimates of the centre [V21, §4.3]."""
    chains = _rank_normalise(_split(draws))
    n, n_chains = chains.shape[:2]
    flat = chains.reshape(n, n_chains, -1)
    found = [_effective_size(flat[..., k]) for k in range(flat.shape[-1])]
    return np.array(found).reshape(chains.shape[2:])


def _split(draws: Array) -> Array:
    """Every chain as two: [n, chains, ...] -> [n // 2, 2 chains, ...]."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim < 2 or len(draws) < 8:
        raise ValueError(f"draws must be [n, chains, ...] with n >= 8; got shape {draws.shape}")
    half = len(draws) // 2
    return np.concatenate([draws[:half], draws[-half:]], axis=1)


def _rank_normalise(chains: Array) -> Array:
    """Normal scores of the ranks over all chains, by Blom's formula."""
    flat = chains.reshape(chains.shape[0] * chains.shape[1], -1)
    ranks = stats.rankdata(flat, axis=0)
    return special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(chains.shape)


def _effective_size(chains: Array) -> float:
    """Draws over the integrated autocorrelation, truncated by Geyer's initial monotone sequence; chains [n, m]."""
    n, m = chains.shape
    covariance = _autocovariance(chains)  # [n, m]
    within = covariance[0].mean() * n / (n - 1)
    between = chains.mean(0).var(ddof=1) if m > 1 else 0.0
    total = within * (n - 1) / n + between
    if not total > 0:
        return float(n * m)
    correlation = 1 - (within - covariance.mean(1) * n / (n - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    time = max(2 * pairs.sum() - 1, 1 / np.log10(n * m))  # an antithetic chain may be worth more than its draws
    return float(n * m / time)


def _autocovariance(chains: Array) -> Array:
    """Autocovariance of each chain at all lags, each sum divided by n, through the FFT."""
    n = len(chains)
    spectrum = np.fft.rfft(chains - chains.mean(0), 2 * n, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:n] / n
