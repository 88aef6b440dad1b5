"""The frameworks that Luff watches in unchanged scripts, and in `luff.trial_run`."""

#: Packages to wait for, and the luff modules that watch them.
FRAMEWORKS = {
    "torch": "luff.torch",
    "xgboost": "luff.xgboost",
    "jax": "luff.jax",
    "optax": "luff.jax",
    "flax.nnx": "luff.jax",
    "mxnet": "luff.mxnet",
    "keras": "luff.keras",
    "lightgbm": "luff.lightgbm",
    "lightning": "luff.lightning",
    "pytorch_lightning": "luff.lightning",
    "transformers.trainer": "luff.transformers",
    "accelerate": "luff.accelerate",
    "sklearn.neural_network._multilayer_perceptron": "luff.sklearn",
    "sklearn.linear_model._stochastic_gradient": "luff.sklearn",
    "sklearn.cluster._kmeans": "luff.sklearn",
    "sklearn.ensemble._gb": "luff.sklearn",
    "sklearn.ensemble._forest": "luff.sklearn",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": "luff.sklearn",
}
