"""A second look at tables and models: how columns are read, and scores on held-out rows beside baselines."""
