"""Every benchmark that ``--data`` knows; a new one is one file and one entry here."""

from normprobe.data.ai2d import AI2D
from normprobe.data.benchmark import Benchmark
from normprobe.data.mmbench import MMBENCH
from normprobe.data.mmstar import MMSTAR
from normprobe.data.ocrbench import OCRBENCH
from normprobe.data.pope import POPE
from normprobe.data.scienceqa import SCIENCEQA
from normprobe.data.seedbench2plus import SEEDBENCH2PLUS

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (MMBENCH, POPE, MMSTAR, SEEDBENCH2PLUS, OCRBENCH, SCIENCEQA, AI2D)
}
