"""``python -m normprobe``."""

from normprobe.cli.app import main

main()
