"""From a checkpoint to a loaded model: only the weights that are needed, each one checked."""
