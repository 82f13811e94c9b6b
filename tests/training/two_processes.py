"""Train each run of a JSON list, one after the other, in each of the processes that a launcher started.

python -m torch.distributed.run --nproc_per_node 2 two_processes.py LIST.json
"""

import json
import sys
from pathlib import Path

import torch

from arcvq.errors import Stopped
from arcvq.systems import load_config, train


def main() -> None:
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        if "remove" in job:
            Path(job["remove"]).unlink(missing_ok=True)
        try:
            train(
                load_config(job["preset"], job["arguments"]), job["out"], quiet=True, stop_after=job.get("stop_after")
            )
        except Stopped as stopped:
            print(stopped)


if __name__ == "__main__":
    main()
