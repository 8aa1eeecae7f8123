"""The two one-dimensional problems of the paper's figures."""

import numpy as np
import numpy.typing as npt

Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # x [N, 1], y [N]


def cubic(n: int = 20, *, seed: int | np.random.Generator) -> Points:
    """y = x³ + ε with x ~ U[-4, 4] and ε ~ N(0, 9), a variance [LW16, §4.3]."""
    if n < 1:
        raise ValueError(f"n must be at least 1; got {n}")
    random = _generator(seed)
    x = random.uniform(-4, 4, size=n)
    noise = random.normal(0, 3, size=n)
    return x[:, None], x**3 + noise


def osband(seed: int | np.random.Generator) -> Points:
    """y = x + ε + sin 4(x + ε) + sin 13(x + ε) with ε ~ N(0, 0.03²) [LW16, appendix B].

    12 inputs are from U[0, 0.6] and 8 from U[0.8, 1]. The noise moves the input, so y is noisier
    where the curve is steep.
    """
    random = _generator(seed)
    x = np.concatenate([random.uniform(0, 0.6, size=12), random.uniform(0.8, 1, size=8)])
    moved = x + random.normal(0, 0.03, size=x.size)
    return x[:, None], moved + np.sin(4 * moved) + np.sin(13 * moved)


def _generator(seed: int | np.random.Generator) -> np.random.Generator:
    if not isinstance(seed, (int, np.integer, np.random.Generator)):
        raise TypeError(f"seed must be an integer or a numpy.random.Generator; got {seed!r}")
    return np.random.default_rng(seed)
