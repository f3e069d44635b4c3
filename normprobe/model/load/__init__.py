"""From a checkpoint to weights in memory: only those that are needed, each accounted for."""
