"""The verbs of ./dev, one module each. Python 3.9, standard library only."""
