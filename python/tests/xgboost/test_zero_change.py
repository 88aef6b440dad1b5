"""`luff run` on scripts that never mention Luff."""

from __future__ import annotations

import json

import luff
import pytest
import xgboost as xgb

DATA = """
import numpy as np, xgboost as xgb
random = np.random.RandomState(0)
x = random.rand(1000, 8); y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * random.randn(1000) > 0.9).astype(int)
dtrain, dval = xgb.DMatrix(x[:700], label=y[:700]), xgb.DMatrix(x[700:], label=y[700:])
parameters = dict(objective="binary:logistic", max_depth=3, nthread=1, verbosity=0)
"""


def test_native(luff_run):
    done, trial = luff_run(
        DATA + "xgb.train(parameters, dtrain, 20, evals=[(dtrain, 'train'), (dval, 'validation')], "
        "verbose_eval=False)\n"
    )
    assert "no findings" in done.stderr
    assert trial.steps("TRAIN") == list(range(20))
    assert trial.tensor("train-logloss").module == ("train", "training")
    assert trial.tensor("validation-logloss").module == ("validation", "evaluation")
    assert trial.outcome == "completed"


def test_estimator_and_cross_validation(luff_run):
    pytest.importorskip("sklearn")
    _, trial = luff_run(
        DATA + "m = xgb.XGBRegressor(n_estimators=5, n_jobs=1)\n"
        "m.fit(x, y, eval_set=[(x, y)], verbose=False)\n"
        "xgb.cv(parameters, dtrain, 4, nfold=2)\n"
    )
    assert len(trial.steps("TRAIN")) == 9
    assert {"validation_0-rmse", "fit2/test-logloss"} <= set(trial.tensors())


def test_a_hook_of_the_script_is_taken_instead(luff_run):
    _, trial = luff_run(
        DATA + "import luff.xgboost\n"
        "hook = luff.xgboost.Callback(collections=['average_shap'], save_interval=2)\n"
        "xgb.train(parameters, dtrain, 6, evals=[(dval, 'validation')], verbose_eval=False, callbacks=[hook])\n"
    )
    assert len(trial.workers()) == 1
    assert trial.scalars("average_shap/f1", "TRAIN")["mode_step"].tolist() == [0, 2, 4]


def test_forked_children_have_runs_of_their_own(luff_run):
    _, trial = luff_run(
        DATA + "import multiprocessing\n"
        "def one(seed):\n"
        "    d = xgb.DMatrix(x, label=y)\n"
        "    xgb.train({**parameters, 'seed': seed}, d, 3, evals=[(d, 'train')], verbose_eval=False)\n"
        "jobs = [multiprocessing.get_context('fork').Process(target=one, args=(s,)) for s in (1, 2)]\n"
        "[job.start() for job in jobs]; [job.join() for job in jobs]\n"
        "assert all(job.exitcode == 0 for job in jobs)\n"
    )
    with luff.open_trial(f"{trial.path}-2") as other:
        for one in (trial, other):
            assert one.tensor("train-logloss").workers(2, "TRAIN") == [0]
            assert one.steps("TRAIN") == [0, 1, 2]


def test_two_workers_of_the_collective_are_two_workers_of_one_run(luff_run):
    _, trial = luff_run(
        DATA + "import multiprocessing\n"
        "from xgboost import collective\n"
        "from xgboost.tracker import RabitTracker\n"
        "def worker(rank, arguments):\n"
        "    with collective.CommunicatorContext(**arguments):\n"
        "        r, n = collective.get_rank(), collective.get_world_size()\n"
        "        d = xgb.DMatrix(x[r::n], label=y[r::n])\n"
        "        p = {**parameters, 'tree_method': 'hist'}\n"
        "        xgb.train(p, d, 8, evals=[(d, 'train')], verbose_eval=False)\n"
        "if __name__ == '__main__':\n"
        "    tracker = RabitTracker(host_ip='127.0.0.1', n_workers=2)\n"
        "    tracker.start()\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    arguments = tracker.worker_args()\n"
        "    jobs = [context.Process(target=worker, args=(r, arguments)) for r in range(2)]\n"
        "    [job.start() for job in jobs]; [job.join() for job in jobs]\n"
        "    assert all(job.exitcode == 0 for job in jobs)\n"
    )
    assert trial.world_size == 2
    assert len(trial.workers()) == 2
    assert trial.steps("TRAIN") == list(range(8))
    one, two = (trial.scalars("train-logloss", "TRAIN", worker=w)["value"].tolist() for w in (0, 1))
    assert one == two and len(one) == 8


@pytest.mark.skipif(xgb.__version__ < "2.1", reason="its collective has one worker in a process")
@pytest.mark.parametrize("goes_on", [False, True])
def test_workers_of_the_collective_that_are_threads_wait_for_nobody(luff_run, goes_on):
    """As with Dask and processes=False, workers are threads: one is watched, and none waits while the others do."""
    done, trial = luff_run(
        DATA + "import threading\n"
        "from xgboost import collective\n"
        "from xgboost.tracker import RabitTracker\n"
        f"first = xgb.train(parameters, dtrain, 2) if {goes_on} else None\n"
        "def worker(rank, arguments):\n"
        "    with collective.CommunicatorContext(**arguments):\n"
        "        r, n = collective.get_rank(), collective.get_world_size()\n"
        "        d = xgb.DMatrix(x[r::n], label=y[r::n])\n"
        "        p = {**parameters, 'tree_method': 'hist'}\n"
        "        b = xgb.train(p, d, 8, evals=[(d, 'train')], verbose_eval=False, xgb_model=first)\n"
        "        models.append(b.save_raw())\n"
        "models, tracker = [], RabitTracker(host_ip='127.0.0.1', n_workers=3)\n"
        "tracker.start()\n"
        "arguments = tracker.worker_args()\n"
        "jobs = [threading.Thread(target=worker, args=(r, arguments), daemon=True) for r in range(3)]\n"
        "[job.start() for job in jobs]; [job.join(60) for job in jobs]\n"
        "print(len(models), len(set(map(bytes, models))))\n"
    )
    assert done.stdout == "3 1\n"
    assert trial.world_size == len(trial.workers()) == 1
    assert len(trial.scalars("train-logloss", "TRAIN")["value"]) == 8
    assert {"not seen"} == {gap["reason"] for gap in trial.gaps()}


DASK = """
import numpy as np, xgboost as xgb
import dask.array as da
from dask.distributed import Client, LocalCluster
from xgboost import dask as dxgb

if __name__ == "__main__":
    options = dict(n_workers=2, threads_per_worker=1, processes=PROCESSES, dashboard_address=None)
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        x = np.random.RandomState(0).rand(1000, 5)
        x, y = (da.from_array(a, chunks=(250, *a.shape[1:])) for a in (x, (x[:, 0] > 0.5).astype(int)))
        d = dxgb.DaskDMatrix(client, x, y)
        parameters = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
        out = dxgb.train(client, parameters, d, num_boost_round=12, evals=[(d, "train")], verbose_eval=False)
        print([float(loss) for loss in out["history"]["train"]["logloss"]])
"""


@pytest.mark.parametrize("processes", [True, False])
def test_dask(luff_run, processes):
    """Not in the environments of ./dev: docs/xgboost.md names the versions that were tried."""
    pytest.importorskip("dask.dataframe")
    pytest.importorskip("distributed")
    done, trial = luff_run(DASK.replace("PROCESSES", str(processes)))
    assert len(trial.workers()) == trial.world_size == (2 if processes else 1)
    for worker in range(trial.world_size):
        told = trial.scalars("train-logloss", "TRAIN", worker=worker)["value"].tolist()
        assert told == json.loads(done.stdout.strip().splitlines()[-1])


def test_both_frameworks_in_one_script(luff_run):
    pytest.importorskip("torch")
    _, trial = luff_run(
        "import torch\n"
        + DATA
        + "model = torch.nn.Linear(8, 1); o = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    o.zero_grad(); model(torch.zeros(4, 8)).sum().backward(); o.step()\n"
        "xgb.train(parameters, dtrain, 5, evals=[(dtrain, 'train')], verbose_eval=False)\n"
    )
    with luff.open_trial(f"{trial.path}-2") as boosted:  # they are two trainings
        assert [len(one.steps("TRAIN")) for one in (trial, boosted)] == [3, 5]
        assert "train-logloss" in boosted.tensors()
        assert "Linear_weight" in trial.tensors()


def test_a_finding_stops_the_training_after_a_round(luff_run):
    done, trial = luff_run(
        DATA + "import luff, time\n"
        "@luff.on_stop\n"
        "def save():\n"
        "    print('saved')\n"
        "class Slow(xgb.callback.TrainingCallback):\n"
        "    def after_iteration(self, model, epoch, evals_log):\n"
        "        time.sleep(0.005)\n"
        "        return False\n"
        "xgb.train({**parameters, 'eta': 1e-8}, dtrain, 6000, evals=[(dtrain, 'train')], verbose_eval=False,\n"
        "          callbacks=[Slow()])\n",
        "--on-finding",
        "stop",
        expect=76,
    )
    assert "saved" in done.stdout
    assert trial.outcome == "stopped"
    assert 19 < len(trial.steps("TRAIN")) < 6000
