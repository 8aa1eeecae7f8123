"""Puts ``benchmarks/`` on the import path: scripts of the laboratory share its helpers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
