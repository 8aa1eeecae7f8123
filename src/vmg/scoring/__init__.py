"""Predictions for datasets of any size: record batches in, record batches out, on one machine, Ray or Spark."""

from vmg.scoring.batches import output_schema, score_batches
from vmg.scoring.run import ScoringReport, score_dataset

__all__ = ["ScoringReport", "output_schema", "score_batches", "score_dataset"]
