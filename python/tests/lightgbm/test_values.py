"""Recorded values are those that LightGBM itself reports."""

from __future__ import annotations

import lightgbm as lgb
import luff
import luff.lightgbm
import numpy as np
import pytest
from luff.lightgbm import _hook

BASE = {"num_threads": 1, "verbosity": -1, "num_leaves": 7, "objective": "binary"}


def run(path, sets, rounds=12, parameters=None, **arguments):
    dtrain, dval = sets
    with luff.lightgbm.Callback(path, save_interval=1, **arguments) as hook:
        model = lgb.train(
            {**BASE, **(parameters or {})}, dtrain, rounds, valid_sets=[dtrain, dval], callbacks=[hook],
            valid_names=["train", "validation"],
        )  # fmt: skip
    assert hook.guard.first == {}
    return model, luff.open_trial(path)


def walk(node, names, tree, rows):
    """Returns the rows of a tree from `Booster.dump_model`: node -> what Luff should have recorded."""
    split = "split_index" in node
    leaves = names["leaves"]
    number = node["split_index"] if split else leaves - 1 + node.get("leaf_index", 0)
    row = rows[number] = {"Tree": tree, "Depth": names["depth"]}
    if not split:
        row |= {"Feature": -1, "Gain": node["leaf_value"], "Cover": node["leaf_count"]}
        return number
    row |= {"Feature": node["split_feature"], "Gain": node["split_gain"], "Cover": node["internal_count"]}
    below = {**names, "depth": names["depth"] + 1}
    left = walk(node["left_child"], below, tree, rows)
    right = walk(node["right_child"], below, tree, rows)
    row |= {"Yes": left, "No": right, "Missing": left if node["default_left"] else right}
    if node["decision_type"] == "<=":
        row["Split"] = node["threshold"]
    return number


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"objective": "multiclass", "num_class": 2, "bagging_fraction": 0.7, "bagging_freq": 1},
        {"boosting": "dart", "drop_rate": 0.3},
        {"boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1},
        {"use_missing": False, "num_leaves": 40, "min_data_in_leaf": 1},
    ],
)
def test_trees_are_those_of_the_model(sets, tmp_path, more):
    grown = {}

    def listen(env):
        grown[env.iteration] = env.model.dump_model(num_iteration=1, start_iteration=env.iteration)

    data = sets()
    with luff.lightgbm.Callback(tmp_path / "run", collections=["trees"], save_interval=1) as hook:
        lgb.train({**BASE, **more}, data[0], 8, valid_sets=[data[1]], callbacks=[listen, hook])
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    nodes = 0
    for step in range(8):
        found = {name: trial.tensor(f"trees/{name}").value(step, "TRAIN") for name in (*_hook.TREE_COLUMNS,)}
        at = 0
        for index, tree in enumerate(grown[step]["tree_info"]):
            rows = {}
            number = step * len(grown[step]["tree_info"]) + index
            walk(tree["tree_structure"], {"leaves": tree["num_leaves"], "depth": 0}, number, rows)
            assert found["Node"][at : at + len(rows)].tolist() == list(range(len(rows)))
            for node, row in rows.items():
                for name, value in row.items():
                    assert found[name][at + node] == pytest.approx(value, rel=1e-5), (name, node)
                if "Split" not in row:
                    assert np.isnan(found["Split"][at + node])
            at += len(rows)
        assert at == len(found["Node"])
        nodes += at
    assert nodes > 60


def test_frame_has_names_and_ids(sets, tmp_path):
    _, trial = run(tmp_path / "run", sets(feature_name=[f"x{i}" for i in range(8)]), 3, collections=["trees"])
    frame = luff.lightgbm.trees(trial, 2)
    assert frame["Feature"][0] in ("x0", "x1") and frame["Feature"].count("Leaf") == 7
    assert frame["ID"][0] == "2-0" and frame["Cover"][0] == 800


def test_categories(tmp_path):
    random = np.random.RandomState(0)
    colour = random.randint(0, 40, 3000)
    x = np.column_stack([colour, random.rand(3000)])
    y = np.isin(colour, [1, 4, 6, 33, 39]).astype(int)
    dtrain = lgb.Dataset(x, y, categorical_feature=[0])
    with luff.lightgbm.Callback(tmp_path / "run", collections=["trees"], save_interval=1) as hook:
        model = lgb.train({**BASE, "max_cat_to_onehot": 1, "cat_smooth": 0}, dtrain, 3, callbacks=[hook])
    assert hook.guard.first == {}
    root = model.dump_model(num_iteration=1, start_iteration=0)["tree_info"][0]["tree_structure"]
    assert root["decision_type"] == "=="
    found = luff.lightgbm.trees(luff.open_trial(tmp_path / "run"), 0)
    assert found["Category"][0] == [int(n) for n in root["threshold"].split("||")]
    assert found["Split"][0] is None


def test_rounds_that_grow_nothing(tmp_path):
    random = np.random.RandomState(0)
    dtrain = lgb.Dataset(random.rand(30, 2), random.rand(30))
    names = ["trees", "feature_importance"]
    parameters = {**BASE, "objective": "regression", "min_data_in_leaf": 25}
    with luff.lightgbm.Callback(tmp_path / "run", collections=names, save_interval=1) as hook:
        lgb.train(parameters, dtrain, 5, valid_sets=[dtrain], callbacks=[hook])
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert trial.steps("TRAIN") == list(range(5))
    assert trial.tensor("trees/Cover").value(0, "TRAIN").tolist() == [30.0]
    assert trial.tensor("trees/Feature").value(0, "TRAIN").tolist() == [-1]


@pytest.mark.parametrize("interval", [1, 4])
def test_importance_is_that_of_the_model_so_far(sets, tmp_path, interval):
    said = {}

    def listen(env):
        said[env.iteration] = {
            "weight": env.model.feature_importance("split"),
            "total_gain": env.model.feature_importance("gain"),
        }

    dtrain, _ = sets()
    with luff.lightgbm.Callback(
        tmp_path / "run", collections=["feature_importance"], save_interval=interval
    ) as hook:
        lgb.train(BASE, dtrain, 13, callbacks=[listen, hook])
    trial = luff.open_trial(tmp_path / "run")
    for step in range(0, 13, interval):
        for kind, scores in said[step].items():
            for feature in np.flatnonzero(scores):
                found = trial.scalars(f"feature_importance/{kind}/Column_{feature}", "TRAIN")
                value = found["value"][found["mode_step"].tolist().index(step)]
                assert value == pytest.approx(scores[feature] / scores.sum(), rel=1e-5)
    gain = trial.scalars("feature_importance/gain/Column_0", "TRAIN")["value"][-1]
    means = said[12]["total_gain"] / np.maximum(said[12]["weight"], 1)
    assert gain == pytest.approx(means[0] / means.sum(), rel=1e-5)


def test_only_new_trees_are_read_and_each_once(sets, tmp_path, monkeypatch):
    read = []
    original = _hook.read_rounds

    def counting(booster, begin, end):
        read.extend(range(begin, end))
        return original(booster, begin, end)

    monkeypatch.setattr(_hook, "read_rounds", counting)
    run(tmp_path / "run", sets(), 70, collections=["feature_importance", "trees"])
    assert read == list(range(70))


def test_predictions_labels_and_shap(sets, data, tmp_path):
    names = ["predictions", "labels", "average_shap", "full_shap", "hyperparameters"]
    x, y = data
    model, trial = run(tmp_path / "run", sets(), 6, collections=names)
    last = trial.steps("TRAIN")[-1]
    np.testing.assert_allclose(
        trial.tensor("predictions").value(last, "TRAIN"), model.predict(x[800:]), rtol=1e-12
    )
    np.testing.assert_array_equal(trial.tensor("labels").value(0, "TRAIN"), y[800:])
    shap = model.predict(x[:800], pred_contrib=True)
    np.testing.assert_array_equal(trial.tensor("full_shap/Column_3").value(last, "TRAIN"), shap[:, 3])
    average = trial.scalars("average_shap/Column_3", "TRAIN")["value"][-1]
    assert average == pytest.approx(float(shap[:, 3].mean()), rel=1e-4, abs=1e-7)
    assert trial.tensor("hyperparameters/objective").value(0, "TRAIN") == "binary"
    assert trial.scalars("hyperparameters/num_leaves", "TRAIN")["value"][0] == 7
    assert trial.gaps() == []


def test_data_of_the_user(sets, data, tmp_path):
    x, y = data
    dtrain, _ = sets()
    dtrain.construct()  # LightGBM no longer has the rows as they were given
    names = ["predictions", "labels", "full_shap"]
    with luff.lightgbm.Callback(
        tmp_path / "run", collections=names, save_interval=1,
        train_data=x[:10], validation_data=(x[900:], y[900:]),
    ) as hook:  # fmt: skip
        model = lgb.train({**BASE, "objective": "multiclass", "num_class": 2}, dtrain, 3, callbacks=[hook])
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    np.testing.assert_array_equal(trial.tensor("predictions").value(2, "TRAIN"), model.predict(x[900:]))
    np.testing.assert_array_equal(trial.tensor("labels").value(2, "TRAIN"), y[900:])
    shap = model.predict(x[:10], pred_contrib=True).reshape(10, 2, 9)
    np.testing.assert_array_equal(trial.tensor("full_shap/Column_1").value(2, "TRAIN"), shap[:, :, 1])
    with pytest.raises(luff.errors.InvalidArgumentError, match="rows and labels"):
        luff.lightgbm.Callback(tmp_path / "other", validation_data=x)


def test_default_records_metrics_of_every_round_and_nothing_else(sets, tmp_path):
    dtrain, dval = sets()
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        lgb.train({**BASE, "bagging_fraction": 0.5, "bagging_freq": 2}, dtrain, 12, valid_sets=[dtrain, dval],
                  callbacks=[hook])  # fmt: skip
    trial = luff.open_trial(tmp_path / "run")
    assert trial.tensors() == ["training-binary_logloss", "valid_1-binary_logloss"]
    assert trial.tensor("training-binary_logloss").module == ("training", "training")
    assert trial.tensor("training-binary_logloss").role == "loss"
    assert trial.tensor("valid_1-binary_logloss").module == ("valid_1", "evaluation")
    assert len(trial.scalars("valid_1-binary_logloss", "TRAIN")["value"]) == 12
    assert trial.gaps() == []
    document = trial.document("boosting")
    assert document["lightgbm"] == lgb.__version__
    training = document["trainings"][0]
    assert training["rounds_planned"] == 12 and training["rows"] == 800 and training["feature_count"] == 8
    assert training["booster"] == "gbdt" and training["parameters"]["num_leaves"] == 7
    assert training["parameters"]["subsample"] == 0.5


def test_rounds_that_wait_keep_their_time(sets, tmp_path):
    dtrain, dval = sets()
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        lgb.train(BASE, dtrain, 12, valid_sets=[dval], callbacks=[hook])
    with luff.open_trial(tmp_path / "run") as trial:
        rounds = [trial.step_info(step) for step in trial.steps("TRAIN")]
    ends = [one["wall_unix_ns"] for one in rounds]
    assert ends == sorted(set(ends))
    lasted = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    assert [one["duration_ns"] for one in rounds] == [0, *lasted]


def test_what_is_due_and_has_no_data_is_a_gap(sets, tmp_path):
    names = ["predictions", "full_shap"]
    dtrain, _ = sets()
    dtrain.construct()
    with luff.lightgbm.Callback(tmp_path / "run", collections=names, save_interval=1) as hook:
        lgb.train(BASE, dtrain, 3, callbacks=[hook])
    gaps = luff.open_trial(tmp_path / "run").gaps()
    assert sorted((g["tensor"], g["reason"], g["count"]) for g in gaps) == [
        ("full_shap/Column_0", "not seen", 3),
        ("predictions", "not seen", 3),
    ]


def test_scalars_of_the_user_belong_to_their_round(sets, tmp_path):
    dtrain, _ = sets()
    with luff.lightgbm.Callback(tmp_path / "run") as hook:

        def mine(env):
            hook.save_scalar("mine", env.iteration)

        lgb.train(BASE, dtrain, 5, callbacks=[mine, hook])
    found = luff.open_trial(tmp_path / "run").scalars("scalar/mine")
    assert found["value"].tolist() == found["mode_step"].tolist() == [0, 1, 2, 3, 4]


def test_wrong_settings_are_told_at_once(tmp_path):
    with pytest.raises(luff.LuffError, match="save_intervall"):
        luff.lightgbm.Callback(tmp_path / "run", save_intervall=3)
    luff.lightgbm.Callback(tmp_path / "run").close()
    with pytest.warns(UserWarning, match=r"holds a run already; this one is recorded into .*run-2"):
        luff.lightgbm.Callback(tmp_path / "run").close()
