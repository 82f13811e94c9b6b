"""What finished runs leave beside their folders, in one file that is easily carried elsewhere."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from arcvq.storage import write_bytes
from arcvq.sweep.run import Places, Run


def write_archive(file: Path, runs: Sequence[Run], places: Places) -> None:
    """Results, looks along the way and kept models as a tar file, whole or absent; it unpacks into results/ and models/."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for run in runs:
            for path in (run.result(places), run.looks(places)):
                if path.is_file():
                    tar.add(path, Path("results") / path.relative_to(places.results))
            if run.model(places).is_dir():
                tar.add(run.model(places), Path("models") / run.model(places).name)
    write_bytes(file, buffer.getvalue())
