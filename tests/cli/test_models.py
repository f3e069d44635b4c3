"""``normprobe models`` prints the table of model types."""

from support.tiny_models import ALL_TYPES
from typer.testing import CliRunner

from normprobe.cli.app import app


def test_models_prints_every_type_in_80_columns() -> None:
    result = CliRunner().invoke(app, ["models"])
    assert result.exit_code == 0, result.output
    for model_type in ALL_TYPES:
        assert f"\n{model_type} " in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
