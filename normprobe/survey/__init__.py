"""Many models, each measured in a process of its own, into one table."""
