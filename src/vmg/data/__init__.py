"""The data of the paper's experiments: tables, their standard splits, images and toy problems."""

from vmg.data.catalogue import TABLES
from vmg.data.images import IMAGE_SETS, load_images
from vmg.data.splits import read_splits, standard_splits
from vmg.data.toy import cubic, osband
from vmg.data.uci import Table, load_table
from vmg.data.year import load_year

__all__ = [
    "IMAGE_SETS",
    "TABLES",
    "Table",
    "cubic",
    "load_images",
    "load_table",
    "load_year",
    "osband",
    "read_splits",
    "standard_splits",
]
