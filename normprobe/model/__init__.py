"""From a model name to the parts that are measured."""
