"""The paper's experiments: its data, the methods that it compares, and the runs behind its tables and figures.

``vmg`` does without this package. ``vmg reproduce`` loads it when it runs.
"""
