"""Covariance matrices by family: diagonal, diagonal plus rank one in the square root, dense."""

from vmg.math.covariance import Covariance, Dense, Diagonal, RankOne

__all__ = ["Covariance", "Dense", "Diagonal", "RankOne"]
