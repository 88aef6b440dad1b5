"""Recorded values are those that scikit-learn itself reports."""

from __future__ import annotations

import threading
import warnings

import luff
import luff.sklearn
import numpy as np
import pytest
from luff.sklearn._linear import mean_loss
from sklearn.cluster import MiniBatchKMeans
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import hinge_loss, log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier


@pytest.fixture
def run(tmp_path):
    """Returns a function that trains with a hook and returns the trial."""

    def train(model, function, **arguments):
        with luff.sklearn.attach(model, run=tmp_path / "run", **arguments) as hook, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(model)
        assert hook.guard.first == {}
        return luff.open_trial(tmp_path / "run")

    return train


def raw(trial, name, step):
    return trial.tensor(name).value(step, mode="TRAIN")


def test_network(digits, run):
    x, y = digits[0][:1000], digits[1][:1000]
    names = ["weights", "biases", "gradients", "outputs"]
    model = MLPClassifier((12,), solver="sgd", momentum=0, learning_rate_init=0.1, max_iter=4, random_state=0)
    trial = run(model, lambda m: m.fit(x, y), collections=names, save_interval=1)
    assert trial.steps("TRAIN") == list(range(20))
    losses = trial.scalars("NLLLoss_output_0", "TRAIN")["value"]
    assert [losses[i : i + 5].mean() for i in range(0, 20, 5)] == pytest.approx(model.loss_curve_, rel=1e-6)
    for leaf in ("weight", "bias"):
        name = f"MLPClassifier_layer0.{leaf}"
        before, after, moved = (raw(trial, n, s) for n, s in ((name, 7), (name, 8), (f"gradient/{name}", 7)))
        np.testing.assert_allclose(after, before - 0.1 * moved, rtol=1e-9)
    assert raw(trial, "layer0_relu_output_0", 3).shape == (200, 12)
    assert trial.tensor("layer0_relu_output_0").module == ("layer0_relu", "ReLU")
    assert trial.scalars("optimizer/SGD.group0.lr", "TRAIN")["value"].tolist() == [0.1] * 20
    assert [trial.step_info(s, "TRAIN")["update"] for s in trial.steps("TRAIN")] == list(range(20))
    document = trial.document("model")
    assert [m["type"] for m in document["models"][0]["modules"]] == [
        "MLPClassifier",
        "Linear",
        "ReLU",
        "Linear",
    ]
    assert document["optimizers"][0]["type"] == "SGD"


class Corrected:
    """A session that requests half the rate after two steps."""

    def __init__(self, session):
        self._session = session
        self.done = []

    def __getattr__(self, name):
        return getattr(self._session, name)

    def stop_state(self):
        return 0 if self.done else 1

    def at_step_boundary(self, step):
        return 3 if step == 2 else 0

    def take_action(self):
        return 7, "lower_lr", '{"factor": 0.5}', "because"

    def action_done(self, control, done):
        self.done.append((control, done))


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_a_correction_lowers_the_rate_of_a_network(digits, tmp_path, solver):
    model = MLPClassifier((4,), solver=solver, learning_rate_init=0.1, random_state=0)
    correct = luff.corrections.Corrections(lower_lr=True)
    with luff.sklearn.attach(model, run=tmp_path / "run", correct=correct) as hook:
        hook.steps.session = session = Corrected(hook.steps.session)
        for _ in range(2):
            model.partial_fit(digits[0][:600], digits[1][:600], classes=range(10))
    assert session.done == [(7, True)]
    name = {"sgd": "SGD", "adam": "Adam"}[solver]
    rates = luff.open_trial(tmp_path / "run").scalars(f"optimizer/{name}.group0.lr", "TRAIN")
    assert rates["value"].tolist() == [0.1, 0.1] + [0.05] * (len(rates["value"]) - 2)


def test_a_correction_of_another_estimator_is_refused(digits, tmp_path):
    model = SGDClassifier()
    with luff.sklearn.attach(model, run=tmp_path / "run") as hook:
        model.partial_fit(digits[0], digits[1], classes=range(10))
        with pytest.raises(LookupError, match="only networks"):
            hook._lower_lr(0.5)


def test_validation_scores_are_evaluations(digits, run):
    model = MLPClassifier((12,), max_iter=5, early_stopping=True, random_state=0)
    trial = run(model, lambda m: m.fit(*digits))
    found = trial.scalars("scalar/MLPClassifier_validation_score", "EVAL")["value"]
    assert found.tolist() == model.validation_scores_
    assert len(trial.steps("EVAL")) == 5


def test_a_second_fit_has_names_of_its_own_and_batches_go_on(digits, run):
    x, y = digits[0][:400], digits[1][:400]

    def train(model):
        model.fit(x, y)
        model.partial_fit(x, y)
        model.fit(x, y)

    trial = run(MLPClassifier((4,), max_iter=2, random_state=0), train)
    assert len(trial.tensor("NLLLoss_output_0").steps("TRAIN")) == 6
    assert len(trial.tensor("MLPClassifier_2.NLLLoss_output_0").steps("TRAIN")) == 4
    assert "MLPClassifier_2_layer0.weight" in trial.tensors()


@pytest.mark.parametrize(("loss", "said"), [("hinge", hinge_loss), ("log_loss", None)])
def test_linear_model(digits, run, loss, said):
    x, y = digits[0], (digits[1] > 4).astype(int)
    kept = []

    def train(model):
        for begin in range(0, 1000, 100):
            part = slice(begin, begin + 100)
            if kept and said is not None:
                kept.append(said(y[part], model.decision_function(x[part])))
            elif kept:
                kept.append(log_loss(y[part], model.predict_proba(x[part])))
            else:
                kept.append(1.0 if said is not None else np.log(2))
            model.partial_fit(x[part], y[part], classes=[0, 1])

    model = SGDClassifier(loss=loss, random_state=0, eta0=0.01, learning_rate="constant")
    trial = run(model, train, collections=["weights", "biases"], save_interval=1)
    assert trial.scalars(f"{loss}_output_0", "TRAIN")["value"].tolist() == pytest.approx(kept, rel=1e-6)
    assert trial.tensor(f"{loss}_output_0").role == "loss"
    assert raw(trial, "SGDClassifier_weight", 9).shape == (1, 64)
    np.testing.assert_array_equal(
        raw(trial, "SGDClassifier_weight", 0), raw(trial, "SGDClassifier_weight", 1)
    )


def test_a_whole_fit_is_one_step(digits, run):
    trial = run(
        SGDRegressor(random_state=0), lambda m: m.fit(*digits), collections=["weights"], save_interval=1
    )
    assert trial.steps("TRAIN") == [0]
    assert trial.scalars("squared_error_output_0")["value"][0] == pytest.approx((digits[1] ** 2).mean() / 2)


def test_losses_of_linear_models():
    scores, wanted = np.array([[2.0], [-0.5], [0.2]]), np.array([[1.0], [1.0], [-1.0]])
    expected = {
        "hinge": (0 + 1.5 + 1.2) / 3, "perceptron": (0 + 0.5 + 0.2) / 3,
        "squared_hinge": (1.5**2 + 1.2**2) / 3, "modified_huber": (1.5**2 + 1.2**2) / 3,
        "squared_error": 0.5 * (1 + 2.25 + 1.44) / 3, "epsilon_insensitive": (0.9 + 1.4 + 1.1) / 3,
        "squared_epsilon_insensitive": (0.81 + 1.96 + 1.21) / 3,
        "huber": 0.1 * (0.95 + 1.45 + 1.15) / 3,
    }  # fmt: skip
    for kind, value in expected.items():
        assert mean_loss(kind, scores, wanted) == pytest.approx(value), kind
    assert mean_loss("modified_huber", -3 * wanted, wanted) == pytest.approx(12)
    assert mean_loss("of the user's", scores, wanted) is None


def test_clusters(digits, run):
    x = digits[0]
    model = MiniBatchKMeans(10, n_init=1, batch_size=300, random_state=0)
    trial = run(
        model, lambda m: m.partial_fit(x[:300]).partial_fit(x[300:600]), save_all=True, save_interval=1
    )
    inertia = trial.scalars("scalar/MiniBatchKMeans_inertia", "TRAIN")["value"]
    centers = raw(trial, "MiniBatchKMeans_cluster_centers", 0)
    distances = ((x[300:600, None] - centers[None]) ** 2).sum(axis=2).min(axis=1)
    assert inertia[1] == pytest.approx(distances.mean(), rel=1e-6)


def test_boosting(digits, run):
    x, y = digits[0], (digits[1] % 2)
    model = GradientBoostingClassifier(n_estimators=12, n_iter_no_change=5, random_state=0)
    seen = []
    trial = run(
        model, lambda m: m.fit(x, y, monitor=lambda stage, *_: seen.append(stage)),
        collections=["trees", "feature_importance"], save_interval=1,
    )  # fmt: skip
    assert seen == list(range(12))
    assert trial.scalars("train-log_loss", "TRAIN")["value"].tolist() == model.train_score_.tolist()
    assert trial.tensor("train-log_loss").module == ("train", "training")
    assert trial.tensor("validation-log_loss").module == ("validation", "evaluation")
    training = trial.document("boosting")["trainings"][0]
    assert training["rounds_planned"] == 12 and training["rows"] == 1617
    tree = model.estimators_[3, 0].tree_
    np.testing.assert_array_equal(raw(trial, "trees/Yes", 3), tree.children_left)
    inner = tree.children_left >= 0
    np.testing.assert_array_equal(raw(trial, "trees/Feature", 3)[inner], tree.feature[inner])
    np.testing.assert_array_equal(raw(trial, "trees/Split", 3)[inner], tree.threshold[inner])
    np.testing.assert_array_equal(raw(trial, "trees/Cover", 3), tree.n_node_samples)
    np.testing.assert_allclose(raw(trial, "trees/Gain", 3)[~inner], tree.value[~inner, 0, 0])
    for feature in np.flatnonzero(model.feature_importances_):
        share = trial.scalars(f"feature_importance/total_gain/f{feature}", "TRAIN")["value"][-1]
        assert share == pytest.approx(model.feature_importances_[feature], rel=1e-9)


def test_validation_loss_of_boosting_is_that_of_its_early_stopping(digits, run):
    x, y = digits[0], (digits[1] % 2)
    model = GradientBoostingClassifier(n_estimators=5, n_iter_no_change=9, random_state=0)
    held = {}
    original = type(model)._fit_stages

    def keep(self, *args, **kwargs):
        held["x"], held["y"] = args[5], args[6]
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "_fit_stages", keep)
        trial = run(model, lambda m: m.fit(x, y))
    found = trial.scalars("validation-log_loss", "TRAIN")["value"]
    said = [2 * log_loss(held["y"], p) for p in model.staged_predict_proba(held["x"])]
    assert found.tolist() == pytest.approx(said, rel=1e-9)


def test_histograms(digits, run):
    x, y = digits
    names = ["trees", "feature_importance"]
    model = HistGradientBoostingRegressor(max_iter=6, early_stopping=True, random_state=0)
    trial = run(model, lambda m: m.fit(x, y), collections=names, save_interval=1)
    for data, scores in (("train", model.train_score_), ("validation", model.validation_score_)):
        assert trial.scalars(f"{data}-squared_error", "TRAIN")["value"].tolist() == (-scores[1:]).tolist()
    nodes = model._predictors[5][0].nodes
    np.testing.assert_array_equal(raw(trial, "trees/Cover", 5), nodes["count"])
    np.testing.assert_array_equal(raw(trial, "trees/Depth", 5), nodes["depth"])
    inner = nodes["is_leaf"] == 0
    np.testing.assert_array_equal(raw(trial, "trees/Gain", 5)[inner], nodes["gain"][inner].astype(np.float64))
    assert trial.document("boosting")["trainings"][0]["rows"] == nodes["count"][0]


def test_histograms_without_losses(digits, run):
    model = HistGradientBoostingRegressor(max_iter=5, early_stopping=False, warm_start=True)

    def train(model):
        model.fit(*digits)
        model.set_params(max_iter=8).fit(*digits)

    trial = run(model, train, collections=["trees"], save_interval=1)
    assert trial.steps("TRAIN") == trial.tensor("trees/Node").value_steps("TRAIN") == list(range(8))
    assert [t["rounds_before"] for t in trial.document("boosting")["trainings"]] == [0, 5]


def test_forest_that_grows(digits, run):
    model = RandomForestRegressor(warm_start=True, oob_score=True, random_state=0)

    def train(model):
        for count in (10, 20, 30):
            model.set_params(n_estimators=count).fit(*digits)

    trial = run(model, train, collections=["feature_importance"], save_interval=1)
    assert trial.scalars("scalar/RandomForestRegressor_trees")["value"].tolist() == [10, 20, 30]
    assert trial.scalars("scalar/RandomForestRegressor_oob_score")["value"][-1] == model.oob_score_
    found = trial.scalars("feature_importance/impurity/f20")["value"][-1]
    assert found == pytest.approx(model.feature_importances_[20])


def test_any_estimator_with_batches(digits, run):
    x, y = digits

    def train(model):
        for begin in (0, 500):
            model.partial_fit(x[begin : begin + 500], y[begin : begin + 500], classes=np.arange(10))

    model = GaussianNB()
    trial = run(model, train, save_all=True, save_interval=1)
    assert trial.steps("TRAIN") == [0, 1]
    np.testing.assert_array_equal(raw(trial, "GaussianNB_theta", 1), model.theta_)


def test_the_last_of_a_pipeline_is_watched(digits, run):
    pipeline = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=2, random_state=0))
    assert len(run(pipeline, lambda m: m.fit(*digits)).steps("TRAIN")) == 18


def test_what_does_not_train_step_by_step_is_told(tmp_path):
    with pytest.raises(luff.errors.InvalidArgumentError, match="DecisionTreeClassifier"):
        luff.sklearn.attach(DecisionTreeClassifier(), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_training_in_another_thread_is_counted_as_not_seen(digits, tmp_path):
    x, y = digits[0][:400], digits[1][:400]
    outer, inner = (MLPClassifier((4,), max_iter=2, random_state=0) for _ in range(2))

    class Counting(MLPClassifier):
        def _update_no_improvement_count(self, *args):
            thread = threading.Thread(target=lambda: inner.partial_fit(x, y, classes=np.arange(10)))
            thread.start()
            thread.join()
            return super()._update_no_improvement_count(*args)

    outer.__class__ = Counting
    with luff.sklearn.attach(outer, run=tmp_path / "run") as hook, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        luff.sklearn._wraps.hooks.add(hook, [inner])
        outer.fit(x, y)
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == 4
    assert {gap["reason"] for gap in trial.gaps()} == {"not seen"}


def test_boosting_in_a_thread_beside_a_network_is_counted_as_not_seen(digits, tmp_path):
    x, y = digits[0][:400], digits[1][:400]
    boosted = HistGradientBoostingRegressor(max_iter=3)

    class Beside(MLPClassifier):
        def _update_no_improvement_count(self, *args):
            thread = threading.Thread(target=lambda: boosted.fit(x, y))
            thread.start()
            thread.join()
            return super()._update_no_improvement_count(*args)

    outer = Beside((4,), max_iter=2, random_state=0)
    with luff.sklearn.attach(outer, run=tmp_path / "run") as hook, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert luff.sklearn._wraps.listen_to(boosted)
        luff.sklearn._wraps.hooks.add(hook, [boosted])
        outer.fit(x, y)
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == 4
    assert {gap["reason"] for gap in trial.gaps()} == {"not seen"}
