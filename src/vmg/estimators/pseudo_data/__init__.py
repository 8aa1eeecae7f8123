"""The paper's own model, with pseudo-data in every layer, behind scikit-learn's interface."""
