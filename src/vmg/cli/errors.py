"""One line about an error, and the code that the command ends with."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["INTERRUPTED", "MISTAKE", "UNEXPECTED", "explain"]

UsageError: Any = typer.BadParameter.__base__  # typer's own class or, in older versions, click's
UNEXPECTED, MISTAKE, INTERRUPTED = 1, 2, 130  # exit codes


def explain(error: Exception) -> tuple[str, int]:
    """One line about an error, and the exit code."""
    if isinstance(error, UsageError):
        return error.format_message(), MISTAKE
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror or error}", MISTAKE
    if isinstance(error, ModuleNotFoundError):
        return f"this needs the package {error.name}; install it with: pip install 'vmg[app]'", MISTAKE
    from vmg.model_file import ModelFileError
    from vmg.prediction.conformal import CoverageError  # these at last: a mistyped option needs no PyTorch
    from vmg.tables import TableError
    from vmg.training import TrainingError

    if isinstance(error, TableError | ModelFileError | CoverageError | TrainingError):
        return str(error), MISTAKE
    return f"{type(error).__name__}: {error} (add --debug for the traceback)", UNEXPECTED
