"""The paper's experiments: its data, the methods that it compares, and the runs behind its tables and figures.

``vmg`` does without this package. ``vmg reproduce`` and the toy problem of ``vmg demo`` load it when they run.
"""
