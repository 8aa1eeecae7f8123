"""Tables larger than memory, one model for each of many groups, and predictions for datasets of any size."""

from vmg.scale.conversion import as_parquet, convert_csv
from vmg.scale.dataset import Dataset, open_dataset
from vmg.scale.fleet import Fleet, load_fleet
from vmg.scale.fleet_fit import FleetReport, fit_fleet
from vmg.scale.parallel import run_parallel
from vmg.scale.scoring import ScoringReport, output_schema, score_batches, score_dataset
from vmg.scale.stream import fit_dataset
from vmg.scale.updating import update_model

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
    "output_schema",
    "run_parallel",
    "score_batches",
    "score_dataset",
    "update_model",
]
