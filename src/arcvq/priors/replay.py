"""Repeats a function of fixed tensors, on a GPU as a CUDA graph: the host launches one graph instead of hundreds of kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

# Calls before the capture, in which libraries choose their algorithms and compilers compile.
WARM_UP = 2


class Replay:
    """Calls `function()`; on a GPU it is recorded at the first call and replayed from then on.

    The function reads and writes tensors in place and reads nothing on the host. Calling it several times with the same inputs must
    have the same effect as calling it once, because the first call warms it up.
    """

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        self.function, self.on_gpu = function, device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self.on_gpu:
            self.function()
            return
        if self.graph is None:
            self.graph = self._record()
        self.graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # a dead graph must not be freed during a capture
        with torch.cuda.graph(graph, stream=stream):
            self.function()
        return graph
