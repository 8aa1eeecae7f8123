"""Tables larger than memory: datasets of many files, read a batch at a time, and fits to all of their rows."""

from vmg.streaming.conversion import as_parquet, convert_csv
from vmg.streaming.dataset import Dataset, open_dataset
from vmg.streaming.fitting import fit_dataset
from vmg.streaming.updating import update_model

__all__ = ["Dataset", "as_parquet", "convert_csv", "fit_dataset", "open_dataset", "update_model"]
