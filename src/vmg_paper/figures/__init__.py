"""The paper's figures, drawn."""
