"""Charts for notebooks. They need bokeh: ``pip install luff[profiler]``."""
