"""The ``vmg`` command: one file for each command, and what they share."""
