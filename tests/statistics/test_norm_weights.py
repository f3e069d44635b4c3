"""Table 5 against NumPy."""

import math

import numpy as np
import pytest
import torch

from normprobe.statistics.weights import norm_statistics

HIDDEN = 24


def test_statistics_of_table_5() -> None:
    generator = torch.Generator().manual_seed(3)
    gain, bias = 0.02 * torch.randn(2, HIDDEN, dtype=torch.float64, generator=generator)
    table = norm_statistics(gain, bias).set_index("parameter")
    for name, weight in (("gain", gain.numpy()), ("bias", bias.numpy())):
        row, size = table.loc[name], np.abs(weight)
        assert row["hidden_size"] == HIDDEN
        assert row["l2_norm"] == pytest.approx(math.sqrt((weight**2).sum()), rel=1e-12)
        assert row["mean_abs"] == pytest.approx(size.mean(), rel=1e-12)
        assert row["std_abs"] == pytest.approx(size.std(), rel=1e-12)
        assert row["sem_abs"] == pytest.approx(size.std() / math.sqrt(HIDDEN), rel=1e-12)
