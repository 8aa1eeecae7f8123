import json
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import special

import vmg
from vmg import model_file
from vmg.estimators import TableModel
from vmg.files import RunError
from vmg.model_file import ModelFileError
from vmg.scale import fit_fleet, fleet, load_fleet, score_dataset, update_model
from vmg.tables import TableError

FAST = {"n_members": 4, "hidden_layer_sizes": (6,), "max_iter": 20, "random_state": 0}


def sales(sizes=None, seed=0):
    """Shops that share a curve and have levels of their own."""
    sizes = sizes or {"north": 60, "south": 40, "east": 80, "one": 1, "flat": 12}
    rng = np.random.default_rng(seed)
    frames = []
    for k, (shop, n) in enumerate(sizes.items()):
        x, kind = rng.normal(size=n), rng.choice(["a", "b"], n)
        y = np.sin(2 * x) + (kind == "a") + k + 0.1 * rng.normal(size=n)
        frames.append(pd.DataFrame({"x": x, "kind": kind, "shop": shop, "y": 5.0 if shop == "flat" else y}))
    return pd.concat(frames).sample(frac=1, random_state=0).reset_index(drop=True)


def bits(folder):
    """Everything in the model files; the order of a file's header has no meaning."""
    found = {}
    for path in sorted((folder / "models").iterdir()):
        tensors, document = model_file.read(path)
        found[path.name] = document, {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())}
    return found


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "shops"
    return folder, fit_fleet(sales(), "y", "shop", folder, options=FAST)


def test_every_group_has_a_model_and_the_others_a_reason(fitted):
    folder, report = fitted
    assert report.fitted == ["east", "north", "south"]
    assert report.refused == {
        "flat": "its target is always 5.0",
        "one": "it has 1 row, and a fit needs 5",
    }
    assert "Group 'one' has no model of its own: it has 1 row, and a fit needs 5." in report.notes
    index = json.loads((folder / "index.json").read_text())
    assert index["rows"] == {"east": 80, "north": 60, "south": 40}
    model = vmg.load(folder / load_fleet(folder).names["south"])
    assert model.estimator.ensemble_.members.head.count.tolist() == [40.0] * 4


def test_rows_find_their_model(fitted):
    folder, _ = fitted
    fleet, frame = load_fleet(folder), sales(seed=1)
    found = fleet.predict_frame(frame, 0.8)
    for shop in fleet.groups:
        rows = frame["shop"] == shop
        pd.testing.assert_frame_equal(found[rows], fleet.model(shop).predict_frame(frame[rows], 0.8))
    without = found[frame["shop"].isin(["one", "flat"])]
    assert without.drop(columns="flags").isna().all().all() and set(without["flags"]) == {"unseen:shop"}
    assert fleet.unknown(frame) == ["flat", "one"]
    with pytest.raises(TableError, match="there is no model of 'one': it has 1 row"):
        fleet.model("one")
    assert fleet.predict_frame(frame[frame["shop"] == "one"])["y"].isna().all()
    with pytest.raises(TableError, match="the table has no column 'shop'"):
        fleet.predict_frame(frame.drop(columns="shop"))


def test_a_dataset_is_scored_by_a_fleet(fitted, tmp_path):
    folder, _ = fitted
    frame = sales(seed=2)
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    report = score_dataset(folder, tmp_path / "in", tmp_path / "out", n_jobs=1, keep=["shop"])
    assert report.n_rows == len(frame) and not report.refused
    found = pd.read_parquet(tmp_path / "out" / "a.parquet")
    expected = load_fleet(folder).predict_frame(frame)
    found, expected = (f.astype(object).where(f.notna(), -1.0) for f in (found.drop(columns="shop"), expected))
    pd.testing.assert_frame_equal(found, expected)


def test_a_killed_run_goes_on_to_the_same_files(tmp_path, monkeypatch):
    calls = []

    def die(table, **options):
        if calls:
            raise KeyboardInterrupt
        calls.append(table)
        return original(table, **options)

    original = fleet.fit_group
    monkeypatch.setattr(fleet, "fit_group", die)
    folder = tmp_path / "shops"
    with pytest.raises(KeyboardInterrupt):
        fit_fleet(sales(), "y", "shop", folder, options=FAST)
    assert len(bits(folder)) == 1 and not (folder / "index.json").exists()
    with pytest.raises(ModelFileError, match="not finished"):
        load_fleet(folder)
    monkeypatch.setattr(fleet, "fit_group", original)
    report = fit_fleet(sales(), "y", "shop", folder, options=FAST)
    assert len(report.found) == 1 and len(report.fitted) == 2
    again = tmp_path / "again"
    fit_fleet(sales(), "y", "shop", again, options=FAST)
    assert bits(folder) == bits(again)


def test_model_files_that_were_swapped_are_noticed(tmp_path):
    """Also those of groups whose names look like notes."""
    frame = sales().replace({"shop": {"north": "a", "south": "a', b", "east": "c"}})
    fit_fleet(frame, "y", "shop", tmp_path, options=FAST, pool=True)
    fleet, whole = load_fleet(tmp_path), bits(tmp_path)
    a, b = (tmp_path / fleet.names[name] for name in ("a", "a', b"))
    for place, other in ((a, b), (tmp_path / "models" / "others.vmg", b)):
        before = place.read_bytes()
        place.write_bytes(other.read_bytes())
        with pytest.raises(ModelFileError, match=r"must hold the model of .*; it holds another"):
            load_fleet(tmp_path).predict_frame(sales().replace({"shop": {"north": "a", "south": "new"}}))
        place.write_bytes(before)
    a.write_bytes(b.read_bytes())
    report = fit_fleet(frame, "y", "shop", tmp_path, options=FAST, pool=True)
    assert report.fitted == ["a"] and bits(tmp_path) == whole


def test_a_model_that_was_updated_is_loaded_again(fitted, tmp_path):
    folder, frame = tmp_path / "shops", sales(seed=3)
    shutil.copytree(fitted[0], folder)
    fleet = load_fleet(folder)
    before = fleet.predict_frame(frame)["y"]
    rows = frame[frame["shop"] == "north"].assign(y=lambda rows: rows["y"] + 0.5)
    rows.to_parquet(tmp_path / "new.parquet")
    path = folder / fleet.names["north"]
    update_model(vmg.load(path), tmp_path / "new.parquet").model.save(path)
    changed = (fleet.predict_frame(frame)["y"] != before) & before.notna()
    assert changed[frame["shop"] == "north"].all() and not changed[frame["shop"] != "north"].any()


def test_another_run_may_not_use_the_folder(fitted):
    folder, _ = fitted
    with pytest.raises(RunError, match="same rows; got another"):
        fit_fleet(sales(seed=5), "y", "shop", folder, options=FAST)
    with pytest.raises(RunError, match="must be of a run with seed = 1; got 0"):
        fit_fleet(sales(), "y", "shop", folder, options={**FAST, "random_state": 1})


def test_processes_write_the_same_models_as_one(fitted, tmp_path):
    fit_fleet(sales(), "y", "shop", tmp_path / "two", options=FAST, n_jobs=2)
    assert bits(tmp_path / "two") == bits(fitted[0])


def test_classes_are_fitted_one_by_one(tmp_path):
    frame = sales({"north": 60, "south": 40})
    report = fit_fleet(frame, "kind", "shop", tmp_path / "kinds", options=FAST)
    assert report.fitted == ["north", "south"]
    assert set(load_fleet(tmp_path / "kinds").predict_frame(frame)["kind"]) == {"a", "b"}


def test_columns_must_be_there(tmp_path):
    with pytest.raises(TableError, match="has no column 'store'"):
        fit_fleet(sales(), "y", "store", tmp_path)
    with pytest.raises(TableError, match="no row has both a target 'y' and a group 'shop'"):
        fit_fleet(sales().assign(shop=None), "y", "shop", tmp_path)
    with pytest.raises(TableError, match="can be pooled in regression"):
        fit_fleet(sales(), "kind", "shop", tmp_path, pool=True)


@pytest.mark.parametrize(
    "change",
    [{"files": {"south": "../../secret.vmg"}}, {"by": 3}, {"rows": {}}, {"refused": []}, {"holds": "x"}],
    ids=str,
)
def test_an_index_that_describes_no_fleet_is_refused(fitted, tmp_path, change):
    index = json.loads((fitted[0] / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | change))
    with pytest.raises(ModelFileError, match="does not describe a fleet"):
        load_fleet(tmp_path)


def test_pooled_groups_borrow_from_each_other(tmp_path):
    sizes = {f"shop {k}": n for k, n in enumerate([100, 80, 90, 70, 8, 6, 1])}
    frame, test = sales(sizes), sales(dict.fromkeys(sizes, 100), seed=9)
    options = {**FAST, "hidden_layer_sizes": (20,), "max_iter": 80}
    fit_fleet(frame, "y", "shop", tmp_path / "pooled", pool=True, options=options)
    pooled = load_fleet(tmp_path / "pooled")
    assert len(pooled.groups) == 7
    few = test[test["shop"].isin(["shop 4", "shop 5"])]
    alone = tmp_path / "alone"
    fit_fleet(frame, "y", "shop", alone, options=options)
    errors = [
        np.sqrt(np.mean((fleet.predict_frame(few)["y"] - few["y"]) ** 2)) for fleet in (pooled, load_fleet(alone))
    ]
    assert errors[0] < 0.8 * errors[1]
    stranger = pooled.predict_frame(test.assign(shop="never seen"))
    known = pooled.predict_frame(test.assign(shop="shop 0"))
    assert stranger["y_ignorance"].mean() > 2 * known["y_ignorance"].mean()
    again = fit_fleet(frame, "y", "shop", tmp_path / "pooled", pool=True, options=options)
    assert again.fitted == [] and len(again.found) == 7


def test_a_fleet_of_one_group_is_a_single_fit(tmp_path):
    """But for the seed, which each group draws for itself."""
    frame = sales({"north": 60})
    fit_fleet(frame, "y", "shop", tmp_path, options=FAST)
    one = load_fleet(tmp_path).model("north")
    options = {**FAST, "random_state": one.estimator.random_state}
    single = TableModel.fit(frame.drop(columns="shop"), "y", options=options)
    rows = sales({"north": 40}, seed=3).assign(x=lambda rows: rows["x"].where(rows.index % 5 > 0))
    pd.testing.assert_frame_equal(one.predict_frame(rows), single.predict_frame(rows), rtol=1e-6)


# -- what one model of a table can, a fleet can too -------------------------------------------------------------------


def shops(n_rows, seed, *, positive=False):
    """Six shops with slopes of their own; a target that depends on every column."""
    rng, frames = np.random.default_rng(seed), []
    for k in range(6):
        slope, level = np.random.default_rng(100 + k).normal(size=2)
        a, b = rng.normal(size=(2, n_rows))
        kind = rng.choice(["x", "y", "z"], n_rows)
        y = (1.5 + slope) * a + np.sin(2 * b) + level + 2 * (kind == "x") + 0.3 * rng.normal(size=n_rows)
        columns = {"a": a, "b": b, "kind": kind, "shop": f"shop {k}", "y": np.exp(y) if positive else y}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "pooled"])
def six_shops(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("six") / "shops"
    fit_fleet(shops(80, 1), "y", "shop", folder, pool=request.param)
    return load_fleet(folder)


@pytest.mark.parametrize("unknown", [{}, {"a": np.nan}, {"kind": "unseen"}, {"a": np.nan, "kind": None}], ids=str)
def test_intervals_hold_where_cells_are_missing_or_unseen(six_shops, unknown):
    test = shops(150, 2)
    predicted = six_shops.predict_frame(test.assign(**unknown))
    assert test["y"].between(predicted["y_lower"], predicted["y_upper"]).mean() > 0.8
    assert (predicted["flags"] != "").all() == bool(unknown)


def test_strange_rows_are_less_familiar(six_shops):
    test = shops(50, 2)
    usual, strange = (six_shops.predict_frame(rows)["familiarity"] for rows in (test, test.assign(b=40.0)))
    assert usual.mean() > 0.9 and strange.max() < 0.3


@pytest.mark.parametrize("pool", [False, True])
def test_amounts_have_intervals_of_amounts(tmp_path, pool):
    train, test = shops(80, 1, positive=True), shops(150, 2, positive=True)
    fit_fleet(train, "y", "shop", tmp_path / "fleet", pool=pool)
    fleet = load_fleet(tmp_path / "fleet")
    predicted, scores = fleet.predict_frame(test), fleet.evaluate(test)
    assert fleet.any_model.estimator.likelihood_ == "lognormal"
    assert predicted["y_lower"].min() >= 0 and scores["coverage"] > 0.8
    assert scores["log_likelihood"] > -1.6  # -3.6 and -5.5 where the target itself is taken to be a Student t


def test_targets_with_a_unit_and_decimal_commas_are_read(tmp_path):
    frame = sales({"north": 60, "south": 40})
    written = frame.assign(y=frame["y"].map(lambda y: f"{y:.6f} km".replace(".", ",")))
    for name, rows in (("numbers", frame), ("texts", written)):
        fit_fleet(rows, "y", "shop", tmp_path / name, options=FAST)
    one, other = (load_fleet(tmp_path / name) for name in ("numbers", "texts"))
    assert other.any_model.unit == "km" and other.any_model.decimal_comma
    columns = ["y", "y_lower", "y_upper"]
    pd.testing.assert_frame_equal(one.predict_frame(frame)[columns], other.predict_frame(frame)[columns], atol=1e-3)
    assert other.evaluate(written)["rows"] == 100


def test_a_likelihood_that_is_asked_for_is_fitted_or_refused(tmp_path):
    frame = sales({"north": 60, "south": 40}).assign(y=lambda rows: special.expit(rows["y"]))
    for name in ("beta", "normal", "lognormal"):
        fit_fleet(frame, "y", "shop", tmp_path / name, options={**FAST, "likelihood": name})
        fleet = load_fleet(tmp_path / name)
        assert {fleet.model(shop).estimator.likelihood_ for shop in fleet.groups} == {name}
    with pytest.raises(TableError, match="can be pooled in regression with the likelihoods auto, student, lognormal"):
        fit_fleet(frame, "y", "shop", tmp_path / "pool", pool=True, options={**FAST, "likelihood": "beta"})


@pytest.mark.parametrize("pool", [False, True])
def test_absurd_targets_are_left_out(tmp_path, pool):
    frame = sales({"north": 60, "south": 40})
    fit_fleet(frame, "y", "shop", tmp_path / "clean", pool=pool, options=FAST)
    frame.loc[frame.index[frame["shop"] == "south"][0], "y"] = 1e9
    fit_fleet(frame, "y", "shop", tmp_path / "absurd", pool=pool, options=FAST)
    test = sales({"north": 50, "south": 50}, seed=4)
    clean, absurd = (load_fleet(tmp_path / name).evaluate(test)["rmse"] for name in ("clean", "absurd"))
    assert absurd < 1.3 * clean
