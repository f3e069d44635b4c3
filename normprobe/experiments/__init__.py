"""Experiments on the specimen: what of the paper could be tried at small scale."""
