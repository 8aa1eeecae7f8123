"""Tables larger than memory, one model for each of many groups, and predictions for datasets of any size."""

from vmg.scale.dataset import Dataset, as_parquet, convert_csv, open_dataset
from vmg.scale.fleet import Fleet, FleetReport, fit_fleet, load_fleet
from vmg.scale.parallel import run_parallel
from vmg.scale.scoring import ScoringReport, score_batches, score_dataset
from vmg.scale.stream import fit_dataset, update_model

__all__ = [
    "Dataset",
    "Fleet",
    "FleetReport",
    "ScoringReport",
    "as_parquet",
    "convert_csv",
    "fit_dataset",
    "fit_fleet",
    "load_fleet",
    "open_dataset",
    "run_parallel",
    "score_batches",
    "score_dataset",
    "update_model",
]
