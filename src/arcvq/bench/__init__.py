"""Speed and memory: ours beside the plain way and beside other libraries, in one run on one machine."""

from arcvq.bench.contenders import Contender, all_contenders
from arcvq.bench.limits import Limits, measure_limits
from arcvq.bench.suite import SUITES, Size, run_suite
from arcvq.bench.tokens import run_tokens

__all__ = ["SUITES", "Contender", "Limits", "Size", "all_contenders", "measure_limits", "run_suite", "run_tokens"]
