"""The data of the paper's experiments: tables, their standard splits, images, toy problems."""

from vmg_paper.data.images import IMAGE_SETS, load_images
from vmg_paper.data.tables import TABLES, Table, cubic, load_table, osband, standard_splits
from vmg_paper.data.year import load_year

__all__ = [
    "IMAGE_SETS",
    "TABLES",
    "Table",
    "cubic",
    "load_images",
    "load_table",
    "load_year",
    "osband",
    "standard_splits",
]
