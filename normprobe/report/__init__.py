"""Reporting: DataFrames and facts in, files and terminal text out.

- ``run_dir``: the run folder, and reading it back
- ``provenance``: what ran, with which options and versions
- ``tables``: the terminal tables and the JSON on stdout
- ``verdict``: the plain sentence under a table
- ``plots``: the figures, redrawn from the CSV files alone
- ``html``: one page of any runs, self-contained
- ``reference``, ``beside_paper``: the paper's numbers, and a run's beside them

Below these: ``atomic`` (files appear whole), ``json_text``, ``significant`` (digits),
``readable_token``, ``terminal`` (what tables share) and ``markup`` (escaped HTML).
"""
