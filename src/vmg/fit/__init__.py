"""How the estimators fit: members that each leave out rows, and what those rows say of noise and ignorance."""
