"""One model for each group of a table's rows."""
