"""Files of torch.save: each tensor as torch reads it, and damaged or hostile files in one line."""

import argparse
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError
from arcvq.tokenizers.foreign.weights import Weights, read_weights

in_each_format = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before zip"])


class Callback:
    """Something of a library that a checkpoint holds."""


class Run:
    """Runs a command when Python's unpickler reads it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def some_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    base = torch.randn(4, 6)
    return OrderedDict(
        plain=base.clone(),
        double=base.double(),
        half=base.half(),
        bfloat=base.bfloat16(),
        transposed=base.t(),
        part=base[1:3, 2:],
        scalar=torch.tensor(2.5),
        empty=torch.empty(0, 3),
        parameter=torch.nn.Parameter(torch.randn(3)),
        strided=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    )


def saved(value: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@in_each_format
@pytest.mark.parametrize("wrapped", [False, True], ids=["state_dict", "checkpoint"])
def test_tensors_are_those_of_torch(zipped: bool, wrapped: bool, tmp_path: Path) -> None:
    tensors = some_tensors()
    value: Any = tensors
    if wrapped:
        value = {
            "epoch": 3,
            "callbacks": {Callback: {"best": torch.ones(2, dtype=torch.int64)}, "other": Callback()},
            "hyper_parameters": argparse.Namespace(rate=1e-3),
            "state_dict": tensors | {"count": torch.tensor(3)},
            "optimizer_states": [torch.optim.Adam([torch.nn.Parameter(torch.ones(2))]).state_dict()],
        }
    weights = read_weights(saved(value, tmp_path / "x.ckpt", zipped))
    assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in value.get("state_dict", value).items()}
    for name, tensor in tensors.items():
        found = weights.read(name)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_safetensors_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().contiguous() for name, tensor in some_tensors().items()}
    save_file(tensors, tmp_path / "x.safetensors")
    weights = read_weights(tmp_path / "x.safetensors")
    assert all(torch.equal(weights.read(name), tensor) for name, tensor in tensors.items())


@in_each_format
def test_checkpoint_that_names_a_command_is_read_and_runs_nothing(zipped: bool, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    file = tmp_path / "x.ckpt"
    value = {"callbacks": Run(f"touch {tmp_path / 'out' / 'marker'}"), "state_dict": {"w": torch.ones(3)}}
    weights = read_weights(saved(value, file, zipped))
    assert torch.equal(weights.read("w"), torch.ones(3))
    assert list((tmp_path / "out").iterdir()) == []
    torch.load(file, weights_only=False)  # which does run it: else the line above could not fail
    assert (tmp_path / "out" / "marker").exists()


def repacked(file: Path, change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    """The zip file with each entry as `change(name, bytes)` gives it; None leaves it out."""
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            changed = change(name, data)
            if changed is not None:
                archive.writestr(name, changed)
    return file


def is_storage(name: str) -> bool:
    return "/data/" in name


def shape_of(number: int) -> bytes:
    """A tuple of one small number, as torch's pickle has it."""
    return b"K" + bytes([number]) + b"\x85"


HOSTILE: dict[str, tuple[Any, str]] = {
    "a shape beyond its storage": (lambda n, d: d.replace(shape_of(7), shape_of(9)), "larger than its storage"),
    "a storage that is not there": (lambda n, d: None if is_storage(n) else d, "storage is missing"),
    "a short storage": (lambda n, d: d[:8] if is_storage(n) else d, "w is truncated"),
    "no pickle": (lambda n, d: None if n.endswith("data.pkl") else d, "it has no data.pkl"),
    "half a pickle": (lambda n, d: d[:40] if n.endswith("data.pkl") else d, "damaged"),
    "big-endian numbers": (lambda n, d: b"big" if n.endswith("byteorder") else d, "big-endian"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_zip_files_are_refused(case: str, tmp_path: Path) -> None:
    change, message = HOSTILE[case]
    file = repacked(saved({"w": torch.arange(7.0)}, tmp_path / "x.pt"), change)
    with pytest.raises(ArcvqError, match=message) as caught:
        read_weights(file).read("w")
    assert "x.pt" in str(caught.value)


def test_zip_bomb_is_refused(tmp_path: Path) -> None:
    """A small file whose entries unpack to any size."""
    file = repacked(saved({"w": torch.zeros(10**6)}, tmp_path / "x.pt"), lambda n, d: d, zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 10**5
    with pytest.raises(ArcvqError, match="entries are compressed"):
        read_weights(file)


def test_encrypted_entries_are_refused(tmp_path: Path) -> None:
    file = saved({"w": torch.ones(3)}, tmp_path / "x.pt")
    data = bytearray(file.read_bytes())
    for signature, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = data.find(signature)
        while place >= 0:
            data[place + flags] |= 1
            place = data.find(signature, place + 1)
    file.write_bytes(data)
    with pytest.raises(ArcvqError, match="encrypted"):
        read_weights(file)


def test_tensors_together_are_no_larger_than_the_file(tmp_path: Path) -> None:
    """Many names for one storage are small in a file, and large in memory."""
    shared = torch.ones(10_000)
    weights = read_weights(saved({f"w{i}": shared for i in range(100)}, tmp_path / "x.pt"))
    with pytest.raises(ArcvqError, match="larger than the file"):
        list(map(weights.read, weights.shapes))


def test_tensor_of_many_dimensions_is_refused(tmp_path: Path) -> None:
    """The product of a million sizes is a number that takes hours."""
    with pytest.raises(ArcvqError, match="no valid shape"):
        read_weights(saved({"w": torch.ones([1] * 20)}, tmp_path / "x.pt"))


def test_expanded_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="larger than its storage"):
        read_weights(saved({"w": torch.ones(1).expand(10**9)}, tmp_path / "x.pt"))


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="w has no floating-point numbers"):
        read_weights(saved({"w": torch.arange(3)}, tmp_path / "x.pt")).read("w")


def test_whole_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"a whole torch\.nn\.modules\.linear\.Linear.* state_dict\(\)"):
        read_weights(saved(torch.nn.Linear(2, 2), tmp_path / "x.pt"))


@pytest.mark.parametrize("value", [{}, [torch.ones(2)], {"state_dict": {}}, {"state_dict": 3}, {"lr": 1.0}])
def test_file_without_named_tensors_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="holds no tensors by name"):
        read_weights(saved(value, tmp_path / "x.pt"))


def test_torchscript_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"x/{name}", pickle.dumps({}, 2))
    with pytest.raises(ArcvqError, match="TorchScript"):
        read_weights(tmp_path / "x.pt")


@pytest.mark.parametrize("cut", [0, 1, 30, 200, -1, -400])
def test_truncated_files_are_refused(cut: int, tmp_path: Path) -> None:
    for zipped in (True, False):
        file = saved({"w": torch.ones(100)}, tmp_path / "x.pt", zipped)
        data = file.read_bytes()
        file.write_bytes(data[:cut])
        with pytest.raises(ArcvqError, match=r"x\.pt: (damaged|w is truncated)"):
            read_weights(file).read("w")


@pytest.mark.parametrize("data", [b"no checkpoint", pickle.dumps({"w": 1}), b"PK\x03\x04", bytes(range(7, 71))])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(ArcvqError, match=r"x\.pt: damaged, or not a file that torch\.save has written"):
        read_weights(tmp_path / "x.pt")


def test_tar_file_is_refused(tmp_path: Path) -> None:
    """torch's first format."""
    import tarfile

    with tarfile.open(tmp_path / "x.pt", "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(ArcvqError, match="neither a zip file nor of the format before it"):
        read_weights(tmp_path / "x.pt")


def test_names_can_be_changed_and_left_out(tmp_path: Path) -> None:
    weights = read_weights(saved({"a.w": torch.ones(1), "b.w": torch.zeros(2)}, tmp_path / "x.pt"))
    changed = weights.without("b.").renamed(lambda name: name.replace("a.", "c."))
    assert isinstance(changed, Weights)
    assert changed.shapes == {"c.w": (1,)}
    assert torch.equal(changed.read("c.w"), torch.ones(1))
