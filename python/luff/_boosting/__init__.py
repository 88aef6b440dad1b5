"""What hooks of boosting libraries share: collections, tensors of a training, rounds as steps.

Nothing here imports a framework; `luff.xgboost` and `luff.lightgbm` say what their boosters hold.
"""
