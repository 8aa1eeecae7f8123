import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from parquet_parts import make_frame, write_parts

import vmg
from vmg.estimators import TableModel
from vmg.fit.design import squash
from vmg.scale import as_parquet, fit_dataset, open_dataset, update_model
from vmg.scale.stream import RowSample
from vmg.tables import TableError
from vmg.tables.columns import TableChoices

FAST = {"n_members": 4, "hidden_layer_sizes": (8,), "max_iter": 30, "random_state": 0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    return folder / "in", write_parts(folder / "in", [700, 500, 300])


@pytest.fixture(scope="module")
def streamed(dataset):
    return fit_dataset(dataset[0], "y", exclude=["key"], sample_rows=400, options=FAST)


def test_output_layers_are_conditioned_on_every_row_exactly(dataset, streamed):
    estimator = streamed.estimator
    members = estimator.ensemble_.members
    X = streamed.encoder.transform(dataset[1])
    x = squash(estimator.input_scaling_.transform(X))
    y = estimator.target_scaling_.transform(dataset[1][["y"]].to_numpy())
    with torch.no_grad():
        phi = members.features(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(members.head.gram, np.swapaxes(phi, -1, -2) @ phi, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(members.head.moment, np.swapaxes(phi, -1, -2) @ y, rtol=1e-9, atol=1e-9)
    assert members.head.count.tolist() == [1500.0] * 4
    np.testing.assert_array_equal(estimator.ensemble_.input_range.low, x.min(0))


def test_it_predicts_as_well_as_a_fit_in_memory(dataset):
    folder, rows = dataset
    test, options = make_frame(500, seed=50), {**FAST, "hidden_layer_sizes": (20,), "max_iter": 100}
    streamed = fit_dataset(folder, "y", exclude=["key"], sample_rows=400, options=options)
    whole = TableModel.fit(rows, "y", exclude=["key"], options=options)
    scores = [model.evaluate(test) for model in (streamed, whole)]
    assert scores[0]["rmse"] < 1.2 * scores[1]["rmse"] and 0.8 < scores[0]["coverage"] < 0.99


def test_it_is_saved_and_read_as_any_model(streamed, tmp_path):
    streamed.save(tmp_path / "m.vmg")
    frame = make_frame(10, seed=7)
    pd.testing.assert_frame_equal(vmg.load(tmp_path / "m.vmg").predict_frame(frame), streamed.predict_frame(frame))


def test_a_sample_of_all_rows_is_said_and_the_same_seed_gives_the_same_model(dataset):
    told = []
    models = [fit_dataset(dataset[0], "y", exclude=["key"], options=FAST, tell=told.append) for _ in range(2)]
    assert any("1,500 of 1,500 rows" in note for note in told)
    frame = make_frame(10, seed=7)
    pd.testing.assert_frame_equal(models[0].predict_frame(frame), models[1].predict_frame(frame))


def test_classes(tmp_path):
    whole = write_parts(tmp_path, [400, 300])
    model = fit_dataset(tmp_path, "kind", exclude=["key"], sample_rows=200, options=FAST)
    assert model.task == "classification" and model.estimator.classes_.tolist() == ["blue", "green", "red"]
    assert model.evaluate(whole)["accuracy"] > 0.5


def test_rows_without_a_target_and_bad_parts_are_left_out(tmp_path):
    write_parts(tmp_path, [300, 50, 0])
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    make_frame(300).assign(y=lambda rows: rows["y"].where(rows.index >= 50)).to_parquet(tmp_path / "a.parquet")
    model = fit_dataset(tmp_path, "y", exclude=["key"], options=FAST)
    assert any(note.startswith("Part b.parquet: cannot be read") for note in model.notes)
    assert {"Parts without rows: 'c.parquet'.", "50 rows without a target left out."} <= {*model.notes}
    assert model.estimator.ensemble_.members.head.count[0] == 250
    with pytest.raises(TableError, match="has no column 'price'"):
        fit_dataset(tmp_path, "price")


def test_text_is_converted_once(tmp_path):
    frame = make_frame(300)
    for name, options in (("a.csv", {}), ("b.csv.gz", {"sep": ";"})):
        frame.to_csv(tmp_path / name, index=False, **options)
        with as_parquet(str(tmp_path / name)) as path:
            found = pd.read_parquet(path)
            with pytest.raises(TableError, match=f"^{re.escape(str(tmp_path / name))} has no part") as error:
                open_dataset(path, ["price"])
            assert str(Path(path).parent) not in str(error.value)  # a user does not know the temporary file
            model = fit_dataset(path, "y", exclude=["key"], options=FAST)
        pd.testing.assert_frame_equal(found, frame)
        assert model.task == "regression" and not (tmp_path / path).exists()


def test_an_update_is_exact(dataset, streamed, tmp_path):
    write_parts(tmp_path / "new", [150, 90])
    update = update_model(streamed, tmp_path / "new")
    assert update.n_rows == 240 and update.n_left_out == 0
    frame = make_frame(20, seed=8)
    again = update_model(update_model(streamed, tmp_path / "new" / "b.parquet").model, tmp_path / "new" / "a.parquet")
    pd.testing.assert_frame_equal(update.model.predict_frame(frame), again.model.predict_frame(frame), rtol=1e-8)
    assert streamed.estimator.ensemble_.members.head.count[0] == 1500  # the given model stays
    assert update.model.estimator.ensemble_.members.head.count[0] == 1740


def test_an_update_leaves_out_what_it_does_not_know(tmp_path):
    write_parts(tmp_path / "in", [300])
    model = fit_dataset(tmp_path / "in", "kind", exclude=["key"], options=FAST)
    new = make_frame(40, seed=3)
    new.loc[:9, "kind"] = "violet"
    (tmp_path / "new").mkdir()
    new.to_parquet(tmp_path / "new" / "a.parquet")
    update = update_model(model, tmp_path / "new")
    assert (update.n_rows, update.n_left_out) == (30, 10)
    new.assign(kind="violet").to_parquet(tmp_path / "new" / "a.parquet")
    with pytest.raises(TableError, match="no row with a value in the target 'kind'"):
        update_model(model, tmp_path / "new")
    assert open_dataset(tmp_path / "new").n_rows == 40


def test_an_absurd_target_does_not_change_the_unit_of_the_others(tmp_path):
    clean = make_frame(300)
    for name, y in (("clean", clean["y"]), ("absurd", clean["y"].where(clean.index != 7, 1e9))):
        (tmp_path / name).mkdir()
        clean.assign(y=y).to_parquet(tmp_path / name / "a.parquet")
    models = [fit_dataset(tmp_path / name, "y", exclude=["key"], options=FAST) for name in ("clean", "absurd")]
    errors = [model.evaluate(make_frame(200, seed=6))["rmse"] for model in models]
    assert errors[1] < 1.2 * errors[0]


def test_an_update_says_that_intervals_are_no_longer_calibrated(tmp_path):
    write_parts(tmp_path, [40])
    model = TableModel.fit(make_frame(100, seed=4), "y", exclude=["key"], conformal=0.3, options=FAST)
    update = update_model(model, tmp_path)
    assert update.model.estimator.conformal_scores_ is None and model.estimator.conformal_scores_ is not None
    assert any("no longer calibrated" in note for note in update.notes)
    assert not any("calibrated" in note for note in update_model(update.model, tmp_path, again=True).notes)


def test_choices_about_columns_hold_for_datasets(tmp_path):
    frame = make_frame(300)
    frame["code"] = np.arange(300) % 4
    frame["day"] = [f"{1 + k % 9:02d}/03/2024" for k in range(300)]
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    choices = TableChoices({"code": "category", "key": "ignore"}, {"day": "%m/%d/%Y"})
    model = fit_dataset(tmp_path / "in", "y", choices=choices, options=FAST)
    kinds = {column.name: column.kind for column in model.encoder.columns}
    assert kinds["code"] == "category" and "key" not in kinds and model.choices == choices
    with pytest.raises(TableError, match="has no column 'colour'"):
        fit_dataset(tmp_path / "in", "y", choices=TableChoices({"colour": "category"}), options=FAST)


def test_a_sample_is_fair():
    counts = np.zeros(600)
    for seed in range(400):
        found, keys = RowSample(50), np.random.default_rng(seed)
        for start in range(0, 600, 30):
            found.add(pd.DataFrame({"k": np.arange(start, start + 30)}), keys.random(30))
        assert len(found.rows()) == 50
        counts[found.rows()["k"]] += 1
    expected = 400 * 50 / 600
    chi_squared = np.square(counts - expected).sum() / expected
    assert abs(chi_squared - 599) < 4 * np.sqrt(2 * 599)


# -- updates that would do harm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 50])
def test_an_absurd_target_is_left_out_of_an_update(streamed, tmp_path, n_rows):
    new = make_frame(n_rows + 5, seed=3)
    new.loc[0, "y"] = 1e9
    new[: n_rows if n_rows > 1 else 2].to_parquet(tmp_path / "new.parquet")
    update = update_model(streamed, tmp_path / "new.parquet")
    assert update.n_left_out == 1 and "1 row left out: the target is absurdly far" in update.notes[0]
    rows = make_frame(100, seed=4)
    assert update.model.evaluate(rows)["rmse"] < 1.2 * streamed.evaluate(rows)["rmse"]


def test_rows_that_a_model_has_seen_are_not_counted_twice_without_a_word(dataset, streamed, tmp_path):
    dataset[1][:60].to_parquet(tmp_path / "old.parquet")  # a quarter of them in the sample, whose digests are kept
    with pytest.raises(TableError, match=r"has seen at least 15 rows of 60 .*before.*--again"):
        update_model(streamed, tmp_path / "old.parquet")
    again = update_model(streamed, tmp_path / "old.parquet", again=True)
    assert again.n_rows == 60 and "At least 15 rows seen by the model before, counted once more." in again.notes
    make_frame(60, seed=31).to_parquet(tmp_path / "new.parquet")
    once = update_model(streamed, tmp_path / "new.parquet")
    assert once.notes == []
    with pytest.raises(TableError, match="at least 60 rows of 60"):  # nor those of an earlier update
        update_model(once.model, tmp_path / "new.parquet")
