"""One self-contained HTML page of any runs."""
