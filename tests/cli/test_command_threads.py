"""Commands on small tables compute in one thread, so that a busy machine does not slow them down."""

import numpy as np
import pandas as pd
import pytest
import torch

from vmg.cli.app import run
from vmg.nn.anchored import AnchoredFeatures

FAST = ["--members", "2", "--hidden", "8", "--max-iter", "10", "--quiet"]
FIT = ["fit", "t.csv", "-t", "y", "-o", "m.vmg", *FAST]


@pytest.fixture
def threads(empty_folder, monkeypatch):
    """Numbers of threads at every product of hidden layers, in a process that may use three."""
    rng, before, seen = np.random.default_rng(0), torch.get_num_threads(), set()
    rows = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "shop": ["u", "v"] * 30})
    rows.assign(y=rows["a"] + 0.1 * rows["b"]).to_csv("t.csv", index=False)
    rows.assign(y=rows["a"] - rows["b"]).to_csv("new.csv", index=False)
    layers = AnchoredFeatures.layers

    def noted(self):
        seen.add(torch.get_num_threads())
        return layers(self)

    monkeypatch.setattr(AnchoredFeatures, "layers", noted)
    torch.set_num_threads(3)
    yield seen
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "commands",
    [
        [FIT],
        [[*FIT, "--stream"]],
        [[*FIT, "--by", "shop"], ["predict", "m.vmg", "t.csv", "-o", "p.csv", "-q"]],
        [[*FIT, "--by", "shop", "--pool"]],
        [[*FIT, "--no-holdout"], ["update", "m.vmg", "new.csv", "-q"], ["report", "m.vmg", "t.csv", "-q"]],
    ],
    ids=["in memory", "streamed", "fleet", "pooled fleet", "update and report"],
)
def test_small_work_takes_one_thread(threads, commands):
    for command in commands:
        threads.clear()
        assert run(command) == 0
        assert threads == {1}, command
