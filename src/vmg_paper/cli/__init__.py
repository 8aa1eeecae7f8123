"""The commands of ``vmg reproduce``."""

from vmg_paper.cli.reproduce import reproduce

__all__ = ["reproduce"]
