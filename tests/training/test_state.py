"""A run that goes on from its file ends with the bits of one that was never stopped."""

import math

import pytest
import torch

from vmg import model_file
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP
from vmg.training import Checkpoint, cosine, train
from vmg_paper.layers.factorised import BayesByBackpropLinear
from vmg_paper.layers.point_weights import DropConnectLinear, DropoutLinear, VariationalDropoutLinear

N, D, BATCH = 22, 3, 4
PER_EPOCH = N // BATCH
REPORTS = 4  # steps between them: most fall inside an epoch
STEPS = 6 * PER_EPOCH


class Killed(Exception):
    pass


def killer(step):
    def kill(progress):
        if progress.step >= step:
            raise Killed

    return kill


def layers(kind, **options):
    return lambda: MLP(D, (5,), 2, make_layer=lambda place, n_in, n_out: kind(n_in, n_out, **options))


CASES = {
    "matrix Gaussian": lambda: MLP(D, (5,), 2, n_pseudo=2, pseudo_noise="factored"),
    "replicas": lambda: MLP(D, (5,), 2, n_pseudo=2, batch_shape=(3,)),
    "large tensors": lambda: MLP(D, (150, 150), 2, n_pseudo=2),
    "rank one": lambda: MLP(D, (5,), 2, row_covariance="rank_one"),
    "dropout": layers(DropoutLinear),
    "dropconnect": layers(DropConnectLinear),
    "variational dropout": layers(VariationalDropoutLinear),
    "bayes by backprop": layers(BayesByBackpropLinear),
}


def data():
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(3))
    return x, (x[:, 0] > 0).long()


def run(make, path=None, kill_at=None, likelihood=CategoricalLikelihood, every=1, seed=1, **options):
    """One process's part of a run; what comes before training need not be the same in each."""
    network, likelihood = make(), likelihood()
    generator = torch.Generator().manual_seed(1)
    network.reset_parameters(generator)
    generator.manual_seed(seed)
    callbacks = options.pop("callbacks", [])
    if kill_at is not None:
        callbacks = [*callbacks, killer(kill_at)]
    shape = tuple(network.layers[0].batch_shape)
    x, y = options.pop("data", None) or data()
    options.pop("change", lambda network: None)(network)
    if not isinstance(likelihood, CategoricalLikelihood):
        y = x[:, :2]
    options = {"n_steps": STEPS, "report_every": REPORTS, "learning_rate": 0.01, "schedule": cosine, **options}
    options |= {"generator": generator, "checkpoint": None if path is None else Checkpoint(path, every)}
    history = train(network, likelihood, x, y, batch_size=BATCH, batch_shape=shape, callbacks=callbacks, **options)
    state = {**network.state_dict(), **{f"likelihood.{k}": v for k, v in likelihood.state_dict().items()}}
    return state, history, generator.get_state()


def assert_same(a, b):
    assert a[0].keys() == b[0].keys()
    for name in a[0]:
        assert torch.equal(a[0][name], b[0][name]), name
    terms = [
        [(r.step, r.elbo, r.expected_log_likelihood, r.kl, r.learning_rate) for r in one[1].records] for one in (a, b)
    ]
    assert terms[0] == terms[1]
    assert torch.equal(a[2], b[2])


def gaussian(**options):
    return {"likelihood": lambda: GaussianLikelihood(2, **options)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in CASES),
        ("dropout", gaussian()),
        ("dropout", gaussian(conjugate=False)),
        ("variational dropout", {"likelihood": lambda: KnownNoiseLikelihood(0.5)}),
    ],
)
def test_six_epochs_are_three_and_three_to_the_last_bit(name, options, tmp_path):
    make, path = CASES[name], tmp_path / "run"
    whole = run(make, **options)
    with pytest.raises(Killed):
        run(make, path, kill_at=3 * PER_EPOCH, **options)
    assert path.exists()
    torch.manual_seed(17)  # the default generator plays no part
    assert_same(run(make, path, **options), whole)


@pytest.mark.parametrize("averaging", [None, 0.9])
def test_a_run_may_be_killed_many_times(averaging, tmp_path):
    make, path = CASES["matrix Gaussian"], tmp_path / "run"
    whole = run(make, averaging=averaging)
    for kill_at in (9, 10, 21):  # a report's own file is written after its callbacks, so 10 repeats what 9 lost
        with pytest.raises(Killed):
            run(make, path, kill_at, averaging=averaging)
    assert_same(run(make, path, averaging=averaging), whole)


def test_without_a_generator_the_default_one_is_kept(tmp_path):
    outcomes = []
    x, y = data()
    for kill_at in (None, 13):
        for attempt in range(1 if kill_at is None else 2):
            torch.manual_seed(5 if attempt == 0 else 6)
            network = CASES["matrix Gaussian"]()
            options = {"n_steps": STEPS, "report_every": REPORTS, "batch_size": BATCH}
            if kill_at is not None:
                options["checkpoint"] = Checkpoint(tmp_path / "run")
            if kill_at is not None and attempt == 0:
                with pytest.raises(Killed):
                    train(network, CategoricalLikelihood(), x, y, callbacks=[killer(kill_at)], **options)
            else:
                train(network, CategoricalLikelihood(), x, y, **options)
        outcomes.append(network.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(o.values() for o in outcomes), strict=True))


def test_a_file_changes_nothing_for_a_run_that_is_not_killed(tmp_path):
    make = CASES["matrix Gaussian"]
    assert_same(run(make, tmp_path / "deep" / "run", every=3), run(make))


def test_files_are_written_every_so_many_reports_and_at_the_end(tmp_path):
    path, seen = tmp_path / "run", []

    def look(progress):  # before the report's own file
        seen.append(model_file.read(path)[1]["reports"][-1]["step"] if path.exists() else 0)

    run(CASES["dropout"], path, every=3, callbacks=[look])
    assert seen == [0, 0, 0, 12, 12, 12, 24, 24]
    assert model_file.read(path)[1]["reports"][-1]["step"] == STEPS
    assert [file.name for file in tmp_path.iterdir()] == ["run"]  # nothing temporary is left


def test_a_finished_run_is_only_read(tmp_path):
    first = run(CASES["dropout"], tmp_path / "run")

    def never(progress):
        raise AssertionError("a step was made")

    again = run(CASES["dropout"], tmp_path / "run", callbacks=[never])
    assert_same(first, again)
    assert again[1].stopped == "all steps done"


def test_a_run_that_a_callback_stopped_stays_stopped(tmp_path):
    stop = {"callbacks": [lambda progress: progress.step == 12]}
    first = run(CASES["dropout"], tmp_path / "run", every=50, **stop)
    again = run(CASES["dropout"], tmp_path / "run", every=50)
    assert_same(first, again)
    assert again[1].stopped == first[1].stopped == "stopped by a callback at step 12"
    assert again[1].last.step == 12


def test_time_is_counted_over_all_parts(tmp_path):
    with pytest.raises(Killed):
        run(CASES["dropout"], tmp_path / "run", 13)
    _, history, _ = run(CASES["dropout"], tmp_path / "run")
    seconds = [record.seconds for record in history.records]
    assert seconds == sorted(seconds) and math.isfinite(seconds[-1])


def one_bit(table):
    """The same rows but for the last bit of one number."""
    other = table.clone()
    other[7, 1] = torch.nextafter(other[7, 1], torch.tensor(9.0))
    return other


def move(network):
    with torch.no_grad():
        network.layers[1].loc[0, 0] += 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 2 * STEPS}, f"n_steps = {2 * STEPS}; got {STEPS}"),
        ({"learning_rate": 0.5}, "learning_rate = 0.5; got 0.01"),
        ({"averaging": None}, "averaging = None; got 0.999"),
        ({"data": (one_bit(data()[0]), data()[1])}, "the same x, bit for bit; got another"),
        ({"data": (data()[0], 1 - data()[1])}, "the same y, bit for bit"),
        ({"weight": torch.linspace(0.5, 1.5, N)}, "the same weight, bit for bit"),
        ({"seed": 2}, "the same seed"),
        ({"schedule": lambda progress: 1 - 0.1 * progress}, "the same schedule of the learning rate"),
        ({"make": lambda: MLP(D, (5,), 2, n_pseudo=2, activation="tanh")}, "the same layers and their options"),
        ({"make": lambda: MLP(D, (5,), 2, n_pseudo=2, damping=1e-3)}, "the same layers and their options"),
        ({"change": move}, "the same parameters at the start"),
    ],
)
def test_a_file_of_a_run_that_differs_in_any_part_is_refused(options, message, tmp_path):
    make = {"make": lambda: MLP(D, (5,), 2, n_pseudo=2)}
    run(**make, path=tmp_path / "run")
    with pytest.raises(ValueError, match=f"must be of a run with {message}"):
        run(**{**make, **options}, path=tmp_path / "run")
    assert run(**make, path=tmp_path / "run")[1].stopped == "all steps done"


def test_a_file_that_lacks_a_part_is_refused(tmp_path):
    run(CASES["dropout"], tmp_path / "run")
    tensors, document = model_file.read(tmp_path / "run")
    del tensors["optimiser.0.exp_avg"], tensors["generator"]
    model_file.write(tmp_path / "run", tensors, document)
    with pytest.raises(model_file.ModelFileError, match="does not hold a whole training run"):
        run(CASES["dropout"], tmp_path / "run")


def test_other_files_and_networks_are_refused(tmp_path):
    run(CASES["dropout"], tmp_path / "run")
    with pytest.raises(ValueError, match="must be of a run with parameters = "):
        run(CASES["matrix Gaussian"], tmp_path / "run")
    model_file.write(tmp_path / "model", {"a": torch.zeros(1)}, {"holds": "a model"})
    with pytest.raises(ValueError, match="must hold a training run; got a model"):
        run(CASES["dropout"], tmp_path / "model")
    with pytest.raises(ValueError, match="every must be at least 1; got 0"):
        Checkpoint(tmp_path / "run", 0)
