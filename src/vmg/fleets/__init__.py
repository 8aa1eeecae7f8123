"""One model for each group of a table's rows: fitted many at a time, spread over cores or machines."""

from vmg.fleets.fleet import Fleet, load_fleet
from vmg.fleets.run import FleetReport, fit_fleet
from vmg.fleets.spreading import spread

__all__ = ["Fleet", "FleetReport", "fit_fleet", "load_fleet", "spread"]
