"""Processes that train one model together, over gloo: what they hold is equal, and is that of one process."""

import os
from contextlib import contextmanager

import pytest
import torch
from torch import multiprocessing, nn

import vmg
from vmg.likelihoods import GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP, bayesianize

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo")


def line(n, noise):
    x = torch.randn(n, 2)
    return x, x[:, :1] + noise * torch.randn(n, 1)


@contextmanager
def meeting(rank, folder):
    """Both processes in one group, which none leaves while the other may still talk to it.

    A process ends at once afterwards: threads of gloo that are left abort the interpreter's own end now and then.
    """
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    yield
    torch.distributed.barrier()
    os._exit(0)


def run_process(rank, folder):
    """One of two: other rows, even other numbers of them, the same noise afterwards."""
    with meeting(rank, folder):
        torch.manual_seed(0)
        model = bayesianize(nn.Linear(2, 1), n_data=100)
        parallel = nn.parallel.DistributedDataParallel(model)
        likelihood, optimiser = GaussianLikelihood(), torch.optim.SGD(model.parameters(), lr=1e-3)
        torch.manual_seed(rank)
        for step in range(3):
            x, y = line(5 + rank + step, noise=1.0 + 3 * rank)
            optimiser.zero_grad()
            (-vmg.elbo(parallel, likelihood, x, y, n_data=100).total).backward()
            optimiser.step()
        torch.save((likelihood.state_dict(), [p.detach() for p in model.parameters()]), f"{folder}/{rank}.pt")


@pytest.mark.works_with("DistributedDataParallel", "pass the wrapped model to `vmg.elbo`; two gloo processes")
def test_processes_that_train_together_believe_in_the_same_noise(tmp_path):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.spawn(run_process, (str(tmp_path),), nprocs=2)
    states = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, value in states[0][0].items():
        assert torch.equal(value, states[1][0][name]), name
    for a, b in zip(states[0][1], states[1][1], strict=True):
        assert torch.equal(a, b)
    assert states[0][0]["n_updates"] == 3


def run_replicas(rank, folder):
    with meeting(rank, folder):
        torch.manual_seed(0)
        network = nn.parallel.DistributedDataParallel(MLP(2, (), 1, batch_shape=(3,)))
        likelihood = GaussianLikelihood(batch_shape=(3,))
        torch.manual_seed(rank)
        x, y = line(5 + rank, noise=1.0 + 3 * rank)
        vmg.elbo(network, likelihood, x, y.expand(3, -1, -1), n_data=100)
        torch.save(likelihood.posterior.rate.detach(), f"{folder}/{rank}.pt")


def test_the_noise_of_replicas_comes_from_the_rows_of_all_processes(tmp_path):
    multiprocessing.spawn(run_replicas, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first.shape == (3, 1)
    assert torch.equal(first, second)


def make_still():
    """A model whose draws are its mean, to numerical precision: other noise in other processes makes no difference."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    return bayesianize(plain, n_data=20, initial_scale=1e-6, max_noise=1e-3)


def still_rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)


def train_still(model, x, y, n_steps=3):
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(n_steps):
        optimiser.zero_grad()
        (-vmg.elbo(model, KnownNoiseLikelihood(1.0), x, y, n_data=20).total).backward()
        optimiser.step()


def run_sharded(rank, folder):
    """Whole models, then layers by themselves, sharded over two processes with half of the rows each."""
    from torch.distributed.fsdp import fully_shard

    with meeting(rank, folder):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        x, y = (part[4 * rank : 4 * rank + 4] for part in still_rows())
        for name in ("model", "layers"):
            model = make_still()
            if name == "layers":
                for layer in model[::2]:
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            train_still(model, x, y)
            found = {key: p.full_tensor().detach() for key, p in model.named_parameters()}
            torch.save(found, f"{folder}/{name}.{rank}.pt")
        block = nn.Sequential(make_still())
        fully_shard(block[0], mesh=mesh, reshard_after_forward=True)
        block(x)
        with pytest.raises(RuntimeError, match="kl_divergence must see whole parameters"):
            vmg.nn.kl_divergence(block)
        likelihood, model = GaussianLikelihood(2), fully_shard(make_still(), mesh=mesh)
        vmg.elbo(model, likelihood, x, y, n_data=20)
        torch.save(likelihood.state_dict(), f"{folder}/noise.{rank}.pt")


@pytest.mark.works_with("FSDP2", "`fully_shard` on the model, and on Bayesian layers themselves; two gloo processes")
def test_sharded_parameters_train_as_whole_ones(tmp_path):
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("fully_shard on the CPU needs a PyTorch whose CPU streams record events; 2.6 has none")
    multiprocessing.spawn(run_sharded, (str(tmp_path),), nprocs=2)
    alone = make_still()
    train_still(alone, *still_rows())
    start = dict(make_still().named_parameters())
    for name in ("model", "layers"):
        for rank in range(2):
            found = torch.load(tmp_path / f"{name}.{rank}.pt")
            for key, p in alone.named_parameters():
                torch.testing.assert_close(found[key], p.detach(), atol=1e-6, rtol=1e-5, msg=f"{name} {key}")
    assert not torch.equal(alone[0].loc, start["0.loc"])
    first, second = (torch.load(tmp_path / f"noise.{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
