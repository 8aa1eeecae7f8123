"""A cell means the same to a fit in memory, to a streamed fit and to an update."""

import numpy as np
import pytest

import vmg
from vmg.cli.app import run
from vmg.tables import read_table

FAST = ["--members", "2", "--hidden", "8", "--max-iter", "30", "-q"]


def text(n, seed):
    """Decimal commas, points between thousands, codes that begin with zeros, and a target with a unit."""
    rng = np.random.default_rng(seed)
    size, code = rng.integers(1_000, 9_999, n), rng.choice(["00123", "00124", "10125"], n)
    way = size / 1000 + 2 * (code == "00124") + 0.1 * rng.normal(size=n)
    ways = [f"{value:.2f} km".replace(".", ",") for value in way]
    rows = [
        f"{s // 1000}.{s % 1000:03d};{c};{k % 28 + 1:02d}.03.2021;{w}"
        for k, (s, c, w) in enumerate(zip(size, code, ways, strict=True))
    ]
    return "size;code;day;way\n" + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.csv").write_text(text(200, 0))
    (folder / "more.csv").write_text(text(60, 1))
    for option in ("--in-memory", "--stream"):
        out = f"{folder}/{option.strip('-')}.vmg"
        assert run(["fit", f"{folder}/a.csv", "-t", "way", "-o", out, option, "--no-holdout", *FAST]) == 0
    return folder


def test_a_streamed_fit_reads_cells_as_one_in_memory(folder):
    models = [vmg.load(folder / f"{name}.vmg") for name in ("in-memory", "stream")]
    for model in models:
        columns = {column.name: column for column in model.encoder.columns}
        assert {name: column.kind for name, column in columns.items()} == {
            "size": "number",
            "code": "category",
            "day": "date",
        }
        assert model.decimal_comma and model.unit == "km"
        assert columns["size"].low > 999  # 1.234 is a thousand beside decimal commas
        assert "00123" in columns["code"].known
        frame = read_table(folder / "more.csv", **model.reading).frame
        interval = model.predict_frame(frame)[[f"{model.target}_lower", f"{model.target}_upper"]]
        assert np.isfinite(interval.to_numpy()).all()
        assert model.evaluate(frame)["rmse"] < 1.5
    features = [model.encoder.transform(frame) for model in models]
    np.testing.assert_allclose(*features)


@pytest.mark.parametrize("name", ["in-memory", "stream"])
def test_an_update_reads_cells_as_the_fit(folder, name, tmp_path, capsys):
    out = f"{tmp_path}/m.vmg"
    assert run(["update", f"{folder}/{name}.vmg", f"{folder}/more.csv", "-o", out]) == 0
    assert "60 rows taken in. Model written" in capsys.readouterr().out
    frame = read_table(folder / "a.csv").frame
    before, after = (vmg.load(path).evaluate(frame)["rmse"] for path in (folder / f"{name}.vmg", out))
    assert after < 1.2 * before


def test_loops_of_links_and_single_rows_are_refused(tmp_path, capsys):
    (tmp_path / "a.csv").symlink_to("b.csv")
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "one.csv").write_text("x,y\n1,2.5\n")
    for name, said in (("a", "Too many levels of symbolic links"), ("one", "at least 5 rows")):
        assert run(["fit", f"{tmp_path}/{name}.csv", "-t", "y", "-o", f"{tmp_path}/m.vmg", "--no-holdout", *FAST]) == 2
        assert said in capsys.readouterr().err
