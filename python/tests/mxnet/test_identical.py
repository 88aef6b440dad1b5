"""Training computes bit by bit what it computes without Luff."""

from __future__ import annotations

import luff.mxnet
import mxnet as mx
import mxnet_programs as programs
import numpy as np
import pytest


def bits(outcome):
    return [array.tobytes() for part in outcome for array in part]


@pytest.mark.parametrize("everything", [False, True], ids=["defaults", "everything"])
@pytest.mark.parametrize("way", programs.WAYS, ids=lambda way: way.__name__)
def test_weights_and_losses_are_the_same_bit_by_bit(way, everything, data, tmp_path):
    bare = way(data, lambda *_: None)
    mx.random.seed(0)
    options = {"save_all": True, "save_interval": 1} if everything else {}
    hooks = []
    watched = way(
        data,
        lambda net, trainer=None: hooks.append(
            luff.mxnet.attach(net, trainer=trainer, run=tmp_path / "run", **options)
        ),
    )
    hooks[0].close()
    assert bits(watched) == bits(bare)
    assert hooks[0].health()["hook_errors"] == 0, hooks[0].health()["hook_error_places"]
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == list(range(programs.STEPS))


def test_random_numbers_are_the_training_s_own(data, tmp_path):
    def draws(attach):
        mx.random.seed(3)
        programs.plain(data, attach)
        return mx.nd.random.uniform(shape=(4,)).asnumpy(), np.random.rand(3)

    np.random.seed(5)
    bare = draws(lambda *_: None)
    np.random.seed(5)
    watched = draws(lambda net, trainer: luff.mxnet.attach(net, trainer, run=tmp_path / "run", save_all=True))
    for one, other in zip(bare, watched, strict=True):
        np.testing.assert_array_equal(one, other)
