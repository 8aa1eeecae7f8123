from pathlib import Path

import numpy as np
import pytest
import torch
from regression_rows import D, N, regression, seeded, values

import vmg
from vmg.likelihoods import GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP
from vmg.training import cosine, train

STATUS = Path("/proc/self/status")


@pytest.mark.parametrize("conjugate", [True, False])
def test_replicas_have_no_cross_talk_in_training(conjugate):
    """Replica 0 ends at the same bits whatever replica 1 is taught."""
    x, y = regression(2)
    outcomes = []
    for factor in (1.0, -3.0):
        torch.manual_seed(0)
        network = MLP(D, (4,), 1, n_pseudo=2, batch_shape=(2,))
        likelihood = GaussianLikelihood(conjugate=conjugate, batch_shape=(2,))
        taught = torch.stack([y[0], factor * y[1]])
        train(network, likelihood, x, taught, n_steps=10, batch_size=8, batch_shape=(2,), generator=seeded())
        outcomes.append(values(network, likelihood))
    for a, b in zip(*outcomes, strict=True):
        assert torch.equal(a[0], b[0])
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(*outcomes, strict=True))


def test_rows_beyond_a_replicas_own_are_never_seen():
    """``n_rows``: padding may hold anything finite, and N is each replica's own."""
    x, y = regression(2)
    outcomes = []
    for padding in (0.0, 1e6):
        torch.manual_seed(0)
        x[0, 10:], y[0, 10:] = padding, padding
        network = MLP(D, (4,), 1, batch_shape=(2,))
        n_rows = torch.tensor([10, N])
        options = {"n_steps": 20, "batch_size": 4, "batch_shape": (2,), "n_rows": n_rows, "generator": seeded()}
        train(network, KnownNoiseLikelihood(0.5), x, y, **options)
        outcomes.append(values(network))
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_n_of_each_replica_weighs_its_kl():
    """The report of the first step has the mean of KL_k / n_k over replicas k."""
    x, y = regression(2)
    network = MLP(D, (), 1, batch_shape=(2,)).double()
    kl = vmg.nn.kl_divergence(network).detach()
    n_rows = torch.tensor([10, N])
    options = {"n_steps": 1, "batch_shape": (2,), "n_rows": n_rows}
    history = train(network, KnownNoiseLikelihood(0.5).double(), x.double(), y.double(), **options)
    assert history.last.kl == pytest.approx((kl / n_rows).mean().item(), rel=1e-5)


@pytest.mark.parametrize("batch_shape", [(2,), (2, 3), (N,)])
def test_shared_data_is_the_same_data_for_every_replica(batch_shape):
    """x [N, D] for all replicas trains as the same rows given to each, also where N is the number of replicas."""
    x, y = regression()
    outcomes = []
    for own in (False, True):
        torch.manual_seed(0)
        network = MLP(D, (4,), 1, batch_shape=batch_shape)
        rows = (t.expand(*batch_shape, *t.shape).contiguous() if own else t for t in (x, y))
        options = {"n_steps": 5, "batch_size": 8, "batch_shape": batch_shape, "generator": seeded()}
        train(network, KnownNoiseLikelihood(0.5), *rows, **options)
        outcomes.append(values(network))
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b)


def test_each_replica_learns_its_own_data():
    x, y = regression(2)
    y = torch.stack([y[0], -2 * y[1]])
    network = MLP(D, (), 1, batch_shape=(2,))
    options = {"n_steps": 400, "learning_rate": 0.05, "schedule": cosine, "averaging": 0.99, "batch_shape": (2,)}
    train(network, KnownNoiseLikelihood(0.1), x, y, generator=seeded(), **options)
    error = (network.forward_mean(x) - y).square().mean((-2, -1)).sqrt() / y.std((-2, -1))
    swapped = (network.forward_mean(x.flip(0)) - y.flip(0)).square().mean((-2, -1)).sqrt() / y.std((-2, -1))
    assert error.max() < 0.1
    assert swapped.min() > 1


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_a_mapped_file(tmp_path):
    n = 1_000_000
    x, y = (
        torch.from_numpy(np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.float32, shape))
        for name, shape in (("x", (n, 40)), ("y", (n, 1)))  # 160 MB, holes on disk
    )
    network = MLP(40, (5,), 1, n_pseudo=2)
    train(network, GaussianLikelihood(), x[:100], y[:100], n_steps=5, batch_size=16)  # what is allocated at first use
    seen = [own_megabytes()]
    options = {"report_every": 10, "callbacks": [lambda progress: seen.append(own_megabytes())]}
    train(network, GaussianLikelihood(), x, y, n_steps=100, batch_size=16, **options)
    assert max(seen) - seen[0] < 20  # the order of an epoch takes 8


def own_megabytes():
    """Anonymous memory of this process: not the pages of mapped files."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024
