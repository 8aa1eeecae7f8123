"""Tables larger than memory: datasets of many files, read a batch at a time."""

from vmg.streaming.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
