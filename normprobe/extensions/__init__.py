"""What stands on the core, a folder each, registered as a stranger's package would be."""
