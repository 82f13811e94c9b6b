"""Speed and memory: ours beside the plain way and beside other libraries, in one run on one machine."""

from arcvq.bench.contenders import Contender, all_contenders
from arcvq.bench.suite import SUITES, Size, run_suite

__all__ = ["SUITES", "Contender", "Size", "all_contenders", "run_suite"]
