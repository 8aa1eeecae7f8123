"""One model trained by several processes; two of them on loopback stand for many."""

import os
import signal
from contextlib import contextmanager, nullcontext

import pytest
import torch

from gloo import Pair
from vmg.fused import library
from vmg.likelihoods import CategoricalLikelihood, FullCovarianceLikelihood, GaussianLikelihood
from vmg.nn import MLP
from vmg.priors import GammaPrior
from vmg.training import Checkpoint, train
from vmg.training.loop import Processes

N, BATCH = 90, 33  # slices of 16 rows: one is left out


def table(outputs=1):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, 3, generator=generator)
    y = torch.stack([torch.sin(x[:, 0]) + 0.1 * k * x[:, 1] for k in range(outputs)], -1)
    return x, y + 0.1 * torch.randn(N, outputs, generator=generator)


def network(n_pseudo=0, outputs=1, seed=0):
    torch.manual_seed(seed)
    return MLP(3, [8], outputs, n_pseudo=n_pseudo, prior=GammaPrior())


@contextmanager
def injected_noise():
    """Noise of the joined batch, drawn by number of call: each process gets the part of its own rows."""
    processes, calls, before = Processes(), iter(range(10**6)), library.standard_normal
    n_joined = BATCH - BATCH % 2
    n_own = n_joined // processes.size

    def draw(*shapes, like, generator):
        shared = torch.Generator().manual_seed(next(calls))
        drawn = []
        for *leading, rows, columns in shapes:
            own = rows == n_own
            noise = torch.randn(*leading, n_joined if own else rows, columns, generator=shared, dtype=like.dtype)
            drawn.append(processes.slice(noise.mT).mT.contiguous() if own else noise)
        return drawn

    library.standard_normal = draw
    try:
        yield
    finally:
        library.standard_normal = before


def run(rank, outputs=1, n_pseudo=0, weighed=False, n_steps=200, injected=True, seed=None):
    """Train, and give all that was learned; processes start with different parameters, and the first one's count."""
    likelihood = GaussianLikelihood() if outputs == 1 else FullCovarianceLikelihood(outputs)
    x, y = table(outputs)
    model = network(n_pseudo, outputs, seed=rank)
    if injected:  # in double precision, where sums in another order differ by little
        x, y, model, likelihood = x.double(), y.double(), model.double(), likelihood.double()
    weight = torch.linspace(0.5, 2, N, dtype=x.dtype) if weighed else None
    generator = torch.Generator().manual_seed(3 if seed is None else seed + rank)
    options = {"n_steps": n_steps, "batch_size": BATCH - BATCH % 2, "learning_rate": 0.01, "report_every": 50}
    with injected_noise() if injected else nullcontext():
        history = train(model, likelihood, x, y, weight=weight, generator=generator, **options)
    state = {**model.state_dict(), **{f"likelihood.{k}": v for k, v in likelihood.state_dict().items()}}
    terms = [(r.expected_log_likelihood, r.kl) for r in history.records]
    return {k: v.double().numpy() for k, v in state.items()}, terms


@pytest.mark.parametrize("case", [(1,), (1, 2, True), (2,)], ids=["gaussian", "pseudo-data and weights", "wishart"])
def test_two_processes_train_as_one_with_the_joined_batch(pair, case):
    alone, reports = run(0, *case)
    first, second = pair.run(run, *case)
    assert isinstance(first, tuple), first
    for name, expected in alone.items():
        assert (first[0][name] == second[0][name]).all(), name  # bit for bit
        torch.testing.assert_close(first[0][name], expected, rtol=0, atol=1e-6)
    assert first[1] == second[1]
    torch.testing.assert_close(first[1], reports, rtol=1e-6, atol=1e-6)  # the KL is counted once


def _noises(rank):
    kept, draw = [], library.standard_normal

    def keep(*shapes, **options):
        noises = draw(*shapes, **options)
        kept.append(noises[-1].clone())
        return noises

    library.standard_normal = keep
    try:
        found = run(rank, n_steps=2, injected=False, seed=10)
    finally:
        library.standard_normal = draw
    return kept[0].numpy(), found[0]["layers.0.loc"]


def test_every_process_draws_its_own_noise_and_follows_the_first_ones_seed(pair):
    (first, learned), (second, same) = pair.run(_noises)
    assert (learned == same).all()
    assert not (first[:16] == second[:16]).any()


def _stop(rank):
    callbacks = [lambda progress: rank == 1 and progress.step == 20]
    options = {"n_steps": 100, "report_every": 10, "callbacks": callbacks}
    return train(network(), GaussianLikelihood(), *table(), **options).stopped


def test_a_callback_of_one_process_stops_all(pair):
    assert pair.run(_stop) == [
        "stopped by a callback of another process at step 20",
        "stopped by a callback at step 20",
    ]


def _train_on_others(rank):
    train(network(), GaussianLikelihood(), *(part[: N - rank] for part in table()), n_steps=2)


def test_other_rows_in_a_process_are_refused(pair):
    why = "ValueError: x must have the same shape in all processes; got [[90, 3], [89, 3]]"
    assert pair.run(_train_on_others) == [why] * 2


def _go_on(rank, path, n_stop, die_at):
    """Train with a checkpoint; a process may die on the way, or a callback stop all."""
    x, y = table()
    model, likelihood = network(), GaussianLikelihood()

    def watch(progress):
        if rank == 1 and progress.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"generator": torch.Generator().manual_seed(1), "checkpoint": Checkpoint(path), "callbacks": [watch]}
    history = train(model, likelihood, x, y, n_steps=n_stop, batch_size=BATCH, report_every=10, **options)
    return [r.step for r in history.records], model.layers[0].loc.detach().double().numpy()


def test_a_process_that_dies_stops_the_others_and_the_run_goes_on_with_any_number(pair, tmp_path):
    whole = pair.run(_go_on, tmp_path / "whole.ckpt", 60, None)
    mortal = Pair()
    found = mortal.run(_go_on, tmp_path / "run.ckpt", 60, 40, survivors=[0])
    mortal.close()
    assert found[0].startswith("LostProcessError: another process of this run has ended or does not answer")
    assert "goes on from its checkpoint" in found[0]
    (tmp_path / "again.ckpt").write_bytes((tmp_path / "run.ckpt").read_bytes())

    first, second = pair.run(_go_on, tmp_path / "run.ckpt", 60, None)
    assert first[0] == [10, 20, 30, 40, 50, 60] and (first[1] == second[1]).all()
    assert (first[1] == whole[0][1]).all()  # as if nothing had happened

    steps, learned = _go_on(0, tmp_path / "again.ckpt", 60, None)  # and with one process
    assert steps == [10, 20, 30, 40, 50, 60] and abs(learned - first[1]).max() < 0.05


def test_labels_need_no_gathering(pair):
    x, _ = table()
    labels = (x[:, 0] > 0).long()
    found = pair.run(_classify, x, labels)
    assert found[0] == found[1] and found[0] > -0.6


def _classify(rank, x, labels):
    history = train(
        network(outputs=2), CategoricalLikelihood(), x, labels, n_steps=100, batch_size=BATCH, learning_rate=0.02
    )
    return history.last.expected_log_likelihood
