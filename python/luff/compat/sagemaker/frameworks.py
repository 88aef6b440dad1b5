"""Estimators of frameworks. They differ in name only: a job's script imports what it uses."""

from __future__ import annotations

from luff.compat.sagemaker.estimator import Estimator

__all__ = ["MXNet", "PyTorch", "SKLearn", "TensorFlow", "XGBoost"]


class MXNet(Estimator):
    """Runs a script that trains with MXNet."""


class PyTorch(Estimator):
    """Runs a script that trains with PyTorch."""


class SKLearn(Estimator):
    """Runs a script that trains with scikit-learn."""


class TensorFlow(Estimator):
    """Runs a script that trains with TensorFlow or Keras."""


class XGBoost(Estimator):
    """Runs a script that trains with XGBoost."""
