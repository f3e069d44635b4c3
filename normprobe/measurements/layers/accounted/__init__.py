"""Turning at another rate in Eq. 13: what norms and updates account for."""
