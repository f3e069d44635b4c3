"""Reporting: DataFrames and facts in, files and terminal text out.

- ``run_dir``: the run folder, and reading it back
- ``provenance``: what ran, with which options and versions
- ``tables``: the terminal tables and the JSON on stdout
- ``verdict``: the plain sentence under a table
- ``plots``: the figures, redrawn from the CSV files alone

Below these: ``atomic`` (files appear whole), ``json_text``, ``significant`` (digits) and
``readable_token``.
"""
