"""The data of the paper's experiments: tables, their standard splits, images, toy problems; and mapped files."""

from vmg.data.catalogue import TABLES
from vmg.data.images import IMAGE_SETS, load_images
from vmg.data.mapped import convert_parquet, open_rows, parquet_moments
from vmg.data.splits import read_splits, standard_splits
from vmg.data.toy import cubic, osband
from vmg.data.uci import Table, load_table
from vmg.data.year import load_year

__all__ = [
    "IMAGE_SETS",
    "TABLES",
    "Table",
    "convert_parquet",
    "cubic",
    "load_images",
    "load_table",
    "load_year",
    "open_rows",
    "osband",
    "parquet_moments",
    "read_splits",
    "standard_splits",
]
