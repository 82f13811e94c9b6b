"""Scalars for TensorBoard, written at once. torch's SummaryWriter has a thread, which prints a traceback when the disk is full."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from arcvq.storage import write_error


class EventFile:
    """One file of `folder`, which TensorBoard shows together with those of earlier parts of the same training."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """TensorBoard hides what the earlier parts wrote from `first_step` on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
            raise write_error(folder, error) from None
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Append these numbers at this step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=scalars))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self._file.flush()
        except OSError as error:
            raise write_error(self.path, error) from None
