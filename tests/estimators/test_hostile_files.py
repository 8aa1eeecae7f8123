"""Files that were damaged or made to do harm: each ends in a ModelFileError, soon and in little memory."""

import copy
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors.torch import save

import vmg
from messy import OPTIONS, houses
from quick import ensemble_classifier, ensemble_regressor
from vmg import ModelFileError
from vmg.estimators import TableModel
from vmg.model_file import MAX_FILE_BYTES, MAX_HEADER_BYTES, read, write
from vmg.variational import VMGClassifier, VMGRegressor

TINY = {"hidden_layer_sizes": (4,), "n_pseudo": 2, "max_iter": 2, "n_draws": 8, "random_state": 0, "max_noise": 0.25}
COUNTS = np.arange(24.0) % 5
TARGETS = {
    "poisson": COUNTS,
    "beta": (COUNTS + 1) / 7,
    "ordinal": COUNTS,
    "binomial": np.column_stack([COUNTS, COUNTS + 3]),
}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What sound files hold."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 3))
    path = tmp_path_factory.mktemp("sound") / "model.vmg"
    found = {}
    VMGRegressor(**TINY).fit(X, X[:, 0]).save(path)
    found["regressor"] = read(path)
    VMGClassifier(**TINY).fit(X, np.where(X[:, 0] > 0, "yes", "no")).save(path)
    found["classifier"] = read(path)
    ensemble_regressor().fit(X, X[:, 0]).save(path)
    found["regression"] = read(path)
    ensemble_classifier().fit(X, X[:, 0] > 0).save(path)
    found["classification"] = read(path)
    for name, y in TARGETS.items():
        ensemble_regressor(likelihood=name, max_iter=2).fit(X, y).save(path)
        found[name] = read(path)
    frame = houses().drop(columns="price")
    ensemble_regressor(likelihood="student").fit(frame, np.arange(len(frame)) % 7).save(path)
    found["frame"] = read(path)
    TableModel.fit(houses(), "price", options=OPTIONS).save(path)
    found["table"] = read(path)
    return found


def forge(path, state, change):
    """Write a sound file whose document was changed, with its digest."""
    tensors, document = copy.deepcopy(state)
    change(document, tensors)
    write(path, tensors, document)


def assign(*keys, to):
    """A change of one place of a document."""

    def change(document, tensors):
        place = document
        for key in keys[:-1]:
            place = place[key]
        assert keys[-1] in place or isinstance(place, list)
        place[keys[-1]] = to

    return change


def made_with(**values):
    """A change of the parameters that made the network."""

    def change(document, tensors):
        pairs = document["attributes"]["made_with_"]["pairs"]
        pairs[:] = [[name, values.get(name, value)] for name, value in pairs]

    return change


FORGERIES = {
    "a layer of many outputs": made_with(hidden_layer_sizes=[10**9]),
    "many layers": made_with(hidden_layer_sizes=[1] * 10**5),
    "many pseudo-points": made_with(n_pseudo=10**8),
    "many replicas": made_with(choices=[0.25] * 10**5),
    "no replicas": made_with(choices=[]),
    "a limit of no size": made_with(choices=[5.0]),
    "a dense covariance": made_with(row_covariance="dense"),
    "an unknown covariance": made_with(row_covariance=["dense"]),
    "a size that is a text": made_with(hidden_layer_sizes="4"),
    "a parameter of no name": lambda document, tensors: document["attributes"]["made_with_"]["pairs"].append(["os", 1]),
    "not a mapping": assign("attributes", "made_with_", to=7),
    "an activation of no name": made_with(activation=[]),
    "many draws": assign("parameters", "n_draws", to=10**8),
    "no draws": assign("parameters", "n_draws", to=0),
    "half a draw": assign("parameters", "n_draws", to=0.5),
    "many features": assign("attributes", "n_features_in_", to=10**10),
    "features of no number": assign("attributes", "n_features_in_", to=None),
    "parameters that are a list": assign("parameters", to=[1, 2]),
    "attributes that are a text": assign("attributes", to="all"),
    "an estimator of no class": assign("holds", to={"a": 1}),
    "a method in the place of a number": lambda document, tensors: document["attributes"].update(predict=5),
    "a dunder": lambda document, tensors: document["attributes"].update(__class__=5),
    "a parameter twice": lambda document, tensors: document["attributes"].update(n_draws=10**8),
    "two codecs at once": assign("attributes", "seed_", to={"array": {}, "module": {}}),
    "calibration that is a number": assign("attributes", "conformal_scores_", to=5),
    "no place for a calibration": lambda document, tensors: document["attributes"].pop("conformal_scores_"),
    "no history": lambda document, tensors: document["attributes"].pop("history_"),
    "no scaling": assign("attributes", "input_scaling_", to=None),
    "a history that is no number": assign(
        "attributes", "history_", "History", "records", 0, "Progress", "elbo", to=float("inf")
    ),
    "a scaling of another size": lambda document, tensors: tensors.update({"input_scaling_.mean": torch.zeros(7)}),
    "a network of no numbers": lambda document, tensors: tensors.update({"network_.layers.0.loc": torch.zeros(0)}),
}


@pytest.mark.parametrize("attribute", ["conformal_scores_", "history_", "input_scaling_", "target_scaling_", "seed_"])
def test_ensembles_without_a_part_are_refused(states, tmp_path, attribute):
    path = tmp_path / "model.vmg"
    forge(path, states["regression"], lambda document, tensors: document["attributes"].pop(attribute))
    with pytest.raises(ModelFileError, match=f"(must have|no attribute).*{attribute}"):
        vmg.load(path)


@pytest.mark.parametrize(("part", "value"), [("input_scaling_.scale", 0.0), ("target_scaling_.mean", float("nan"))])
def test_scalings_that_make_no_numbers_are_refused(states, tmp_path, part, value):
    path = tmp_path / "model.vmg"
    forge(path, states["regression"], lambda document, tensors: tensors[part].fill_(value))
    with pytest.raises(ModelFileError, match="finite means and positive scales"):
        vmg.load(path)


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_documents_are_refused(states, tmp_path, name):
    forge(tmp_path / "forged.vmg", states["regressor"], FORGERIES[name])
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(tmp_path / "forged.vmg")


def made_of(**values):
    """A change of what the members were made with."""
    return lambda d: d["members"]["members"]["made_with"].update(values)


ENSEMBLES = {
    "many members": made_of(n_members=10**9),
    "no members": made_of(n_members=0),
    "many inputs": made_of(in_features=10**9),
    "a wide layer": made_of(hidden=[10**9]),
    "another layer": lambda d: d["members"]["members"]["made_with"]["hidden"].append(10**6),
    "a size that is a text": made_of(in_features="3"),
    "an unknown activation": made_of(activations=["os"]),
    "members of another kind": lambda d: d["members"]["members"].update(kind="ScalarMembers"),
    "no members at all": lambda d: d.pop("members"),
    "a part of another kind": lambda d: d.update(input_range={"Kernel": {}}),
}
PARTS = [
    ("regression", made_of(n_outputs=10**9)),
    ("regression", lambda d: d.update(calibrations=[])),
    ("regression", lambda d: d.update(fields=[])),
    ("regression", made_of(noise_prior={"NoisePrior": {"rate": -1.0}})),
    ("classification", made_of(n_classes=10**9)),
    ("classification", lambda d: d["calibration"]["Factors"].update(sharpness=-1.0)),
    ("classification", lambda d: d["calibration"]["Factors"].update(inflation=float("inf"))),
    ("classification", lambda d: d["calibration"]["Factors"].update(trust=-1.0)),
]


def ensemble_of(document):
    """What a document says of the ensemble."""
    [fields] = document["attributes"]["ensemble_"].values()
    return fields


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, change) for kind in ("regression", "classification") for change in ENSEMBLES.values()),
        *PARTS,
    ],
)
def test_forged_ensembles_are_refused(states, tmp_path, kind, change):
    forge(tmp_path / "f.vmg", states[kind], lambda document, _: change(ensemble_of(document)))
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(tmp_path / "f.vmg")


THETA = "ensemble_.theta"


def likelihood_of(ensemble):
    return ensemble["members"]["members"]["made_with"]["likelihood"]["likelihood"]


def with_constants(**values):
    """A change of the constants of the likelihood."""
    return lambda d, t: likelihood_of(d)["constants"].update(values)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("poisson", with_constants(level=float("nan")), "level must be finite"),
        ("poisson", with_constants(ceiling=-1.0), "ceiling must be positive"),
        ("poisson", lambda d, t: likelihood_of(d).update(name="other"), "other"),
        ("beta", lambda d, t: t.update({THETA: t[THETA].repeat(2)}), "shape"),
        ("beta", lambda d, t: d["calibration"]["Factors"].update(inflation=-1.0), "positive factors"),
        ("ordinal", with_constants(levels=[1.0] * 200), "at most 100"),
        ("binomial", with_constants(trials=10**12), "trials must be a whole number"),
    ],
)
def test_forged_likelihoods_are_refused(states, tmp_path, name, change, message):
    forge(tmp_path / "f.vmg", states[name], lambda document, t: change(ensemble_of(document), t))
    with pytest.raises(ModelFileError, match=message):
        vmg.load(tmp_path / "f.vmg")


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(task="classification"),
        lambda document: document.update(task=["regression"]),
        lambda document: document.update(target=5),
        lambda document: document.update(notes=[1]),
        lambda document: document.update(decimal_comma="no"),
        lambda document: document.update(base_rate=[1.0]),
        lambda document: document.update(estimator=None),
        lambda document: document["estimator"]["attributes"].pop("inputs_"),
        lambda document: document["estimator"]["attributes"].update(inputs_=None),
    ],
)
def test_forged_tables_are_refused(states, tmp_path, change):
    forge(tmp_path / "f.vmg", states["table"], lambda document, _: change(document))
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(tmp_path / "f.vmg")


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs, columns: inputs.update(encoder=[]),
        lambda inputs, columns: inputs.update(plain=True),
        lambda inputs, columns: inputs.update(plain="no"),
        lambda inputs, columns: inputs["reference"].update(typical=-1.0),
        lambda inputs, columns: inputs.clear(),
        lambda inputs, columns: inputs["encoder"].update(dropped=["a"]),
        lambda inputs, columns: inputs["encoder"].update(n_rows=None),
        lambda inputs, columns: columns.pop(),
        lambda inputs, columns: columns.append(columns[0]),
        lambda inputs, columns: columns[0].update(kind="os"),
        lambda inputs, columns: columns[0].update(median="much"),
        lambda inputs, columns: columns[0].update(median=float("nan")),
        lambda inputs, columns: columns[0].update(name=["a"]),
        lambda inputs, columns: columns[1].update(levels="Rome"),
        lambda inputs, columns: columns[1].update(levels=[1, 2]),
        lambda inputs, columns: columns[3].update(date_format="%Y" * 1000),
    ],
)
def test_forged_inputs_are_refused(states, tmp_path, change):
    def change_inputs(document, tensors):
        inputs = document["attributes"]["inputs_"]["inputs"]
        change(inputs, inputs["encoder"]["columns"])

    forge(tmp_path / "f.vmg", states["frame"], change_inputs)
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(tmp_path / "f.vmg")


@pytest.mark.parametrize("kind", ["regression", "frame"])
def test_a_forged_number_of_features_takes_no_memory(states, tmp_path, kind):
    forge(tmp_path / "f.vmg", states[kind], assign("attributes", "n_features_in_", to=2**31))
    with pytest.raises(ModelFileError, match="n_features_in_ must"):
        vmg.load(tmp_path / "f.vmg")


@pytest.mark.parametrize("dtype", ["<U1000000000", "V1000000000", "(1000000,)f8", "f8,f8", "M8[s]", "nothing", "<U2"])
def test_types_of_classes_are_those_of_their_texts(states, tmp_path, dtype):
    change = assign("attributes", "classes_", "array", "dtype", to=dtype)
    forge(tmp_path / "forged.vmg", states["classifier"], change)
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(tmp_path / "forged.vmg")


def test_what_could_not_be_read_is_not_written(states, tmp_path):
    X = np.random.default_rng(0).normal(size=(24, 3))
    model = VMGRegressor(**TINY).fit(X, X[:, 0]).set_params(n_draws=10_001)
    with pytest.raises(ModelFileError, match=r"cannot be saved: The 'n_draws' parameter .* in the range \[1, 10000\]"):
        model.save(tmp_path / "model.vmg")
    with pytest.raises(ModelFileError, match="header must have at most"):
        write(tmp_path / "model.vmg", {}, {"holds": "x" * MAX_HEADER_BYTES})
    assert not os.listdir(tmp_path)


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "contents",
    [
        with_header(b'{"__metadata__": {"vmg": ' + b"[" * 100_000),
        with_header({"__metadata__": {"vmg": "[" * 100_000}}),
        with_header({"__metadata__": {"vmg": '{"format": "vmg", "version": ' + "1" * 5000 + "}"}}),
        with_header({"__metadata__": {"vmg": 5}}),
        with_header({"__metadata__": [1]}),
        with_header({"__metadata__": None}),
        with_header({"__metadata__": {"vmg": '{"format": "vmg", "version": true}'}}),
        with_header({"__metadata__": {"vmg": '{"format": "vmg", "version": -1}'}}),
        with_header(
            {
                "__metadata__": {"vmg": '{"format": "vmg", "version": 1}'},
                "a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
            }
        ),
        with_header({"__metadata__": {"vmg": '{"format": "vmg", "version": 1}'}, "a": 5}),
        (2**63).to_bytes(8, "little") + b'{"__metadata__"' + bytes(64),
        save({"a": torch.ones(2)}, metadata={"vmg": '{"format": "vmg", "version": 1}'}),
    ],
)
def test_forged_headers_are_refused(tmp_path, contents):
    path = tmp_path / "forged.vmg"
    path.write_bytes(contents)
    with pytest.raises(ModelFileError):
        vmg.load(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, tmp_path / "link", "/dev/zero", "/dev/null", tmp_path):
        with pytest.raises(ModelFileError, match="is not a regular file"):
            vmg.load(path)
    with pytest.raises(ModelFileError, match="cannot read"):
        vmg.load("a\0b")


def test_files_of_a_size_that_no_model_has(tmp_path):
    path = tmp_path / "sparse.vmg"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ModelFileError, match=f"must have at most {MAX_FILE_BYTES:,} bytes"):
        vmg.load(path)
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES)
    with pytest.raises(ModelFileError, match="is not a vmg model"):
        vmg.load(path)


def test_forged_sizes_allocate_nothing(states, tmp_path):
    """All forgeries in a process that may not have 400 MB more than it needs to start."""
    paths = []
    for name in ("a layer of many outputs", "many layers", "many pseudo-points", "many replicas", "many features"):
        paths.append(str(tmp_path / name))
        forge(paths[-1], states["regressor"], FORGERIES[name])
    program = """
        import resource, sys, vmg
        import vmg.estimators.documents  # what loading needs is there before memory gets scarce
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
        for path in sys.argv[1:]:
            try:
                vmg.load(path)
            except vmg.ModelFileError as error:
                assert "MemoryError" not in str(error) and "memory" not in str(error), error
            else:
                raise AssertionError(path)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
