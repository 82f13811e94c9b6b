"""The commands import and export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import Tokenizer
from arcvq.nets import VqganConfig
from arcvq.quantizers import ArcVQConfig, VQConfig
from arcvq.tokenizers import build_tokenizer

Arcvq = Callable[..., Any]
VQGAN = VqganConfig(width=8, multipliers=(1, 2), attention=(2,), blocks=1, groups=4, latent_dim=4)


@pytest.fixture
def refused(arcvq: Arcvq, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail with one line and exit code 2, and write nothing; return the line."""

    def run(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        result = arcvq(*arguments)
        assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
        assert sorted(tmp_path.rglob("*")) == before
        return str(result.errors)

    return run


def save_tokenizer(folder: Path, config: VQConfig) -> Path:
    torch.manual_seed(0)
    return build_tokenizer(3, VQGAN, config, image_size=(16, 16)).save_pretrained(folder)


def test_export_and_import_give_the_tokenizer_back(arcvq: Arcvq, tmp_path: Path) -> None:
    saved = save_tokenizer(tmp_path / "saved", VQConfig(codebook_size=16))
    exported = arcvq("export", saved, "--format", "diffusers", "--out", tmp_path / "vqmodel")
    assert exported.output == f"{tmp_path / 'vqmodel'}: a VQModel of diffusers\n"
    imported = arcvq("import", tmp_path / "vqmodel", "--out", tmp_path / "again")
    assert imported.output == (
        f"{tmp_path / 'again'}: a VQModel of diffusers, 2× down, 16 codes of width 4, chosen by euclidean\n"
    )
    first, second = (Tokenizer.from_pretrained(tmp_path / name) for name in ("saved", "again"))
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.equal(first.reconstruct(images), second.reconstruct(images))
    assert "VQModel of diffusers" in (tmp_path / "again" / "README.md").read_text(encoding="utf-8")


def test_results_as_json(arcvq: Arcvq, tmp_path: Path) -> None:
    saved = save_tokenizer(tmp_path / "saved", ArcVQConfig(codebook_size=16))
    vqmodel, again = tmp_path / "vqmodel", tmp_path / "again"
    exported = arcvq("export", saved, "--format", "diffusers", "--decoder-only", "--out", vqmodel, "--json")
    assert json.loads(exported.output) == {
        "folder": str(vqmodel),
        "format": "diffusers",
        "encodes_to_same_tokens": False,
    }
    imported = json.loads(arcvq("import", vqmodel, "--metric", "cosine", "--out", again, "--json").output)
    assert (imported["metric"], imported["codes"]) == ("cosine", 16)


def test_decoder_only_says_so(arcvq: Arcvq, tmp_path: Path) -> None:
    saved = save_tokenizer(tmp_path / "saved", ArcVQConfig(codebook_size=16))
    result = arcvq("export", saved, "--format", "diffusers", "--decoder-only", "--out", tmp_path / "vqmodel")
    assert "for decoding: VQModel would encode to other tokens" in result.output
    assert "chooses codes by cosine" in (tmp_path / "vqmodel" / "README.md").read_text(encoding="utf-8")


def test_onnx_export_reports_how_it_compares(arcvq: Arcvq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arcvq.tokenizers.foreign import onnx_export

    result = onnx_export.OnnxExport(tmp_path / "onnx", same_tokens=0.995, pixel_difference=2e-6)
    monkeypatch.setattr(onnx_export, "export_onnx", lambda *_: result)
    command = ("export", "tiny", "--format", "onnx", "--out", tmp_path / "onnx")
    assert "99.50% of the tokens are the same, and pixels differ by 2.0e-06 at most" in arcvq(*command).output
    assert json.loads(arcvq(*command, "--json").output)["same_tokens"] == 0.995


@pytest.mark.parametrize(("format", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_export_in_half_precision_is_a_tokenizer(arcvq: Arcvq, tmp_path: Path, format: str, dtype: torch.dtype) -> None:
    saved = save_tokenizer(tmp_path / "saved", ArcVQConfig(codebook_size=16))
    result = arcvq("export", saved, "--format", format, "--out", tmp_path / "half")
    assert result.output == f"{tmp_path / 'half'}: a tokenizer with its weights as {format}, 0.1 MiB\n"
    first, second = (Tokenizer.from_pretrained(tmp_path / name).state_dict() for name in ("saved", "half"))
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor.to(dtype).to(tensor.dtype) if tensor.is_floating_point() else tensor)
    card = (tmp_path / "half" / "README.md").read_text(encoding="utf-8")
    assert "| exported from | saved |" in card
    assert "stored in half precision" in card
    size = (tmp_path / "half" / "model.safetensors").stat().st_size
    again = arcvq("export", saved, "--format", format, "--out", tmp_path / "again", "--json")
    assert json.loads(again.output) == {"folder": str(tmp_path / "again"), "format": format, "bytes": size}


def test_wrong_input_is_named_in_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    new = tmp_path / "new"
    saved = save_tokenizer(tmp_path / "saved", ArcVQConfig(codebook_size=16))
    (tmp_path / "x.ckpt").write_bytes(b"no checkpoint")
    assert "none.ckpt: no such file" in refused("import", tmp_path / "none.ckpt", "--out", new)
    assert "x.ckpt: damaged" in refused("import", tmp_path / "x.ckpt", "--out", new)
    assert "saved: exists: give a new folder" in refused("import", tmp_path / "x.ckpt", "--out", saved)
    assert "a tokenizer of arcvq already" in refused("import", saved, "--out", new)
    assert "add --decoder-only" in refused("export", saved, "--format", "diffusers", "--out", new)
    assert "--decoder-only is for --format diffusers" in refused(
        "export", saved, "--format", "onnx", "--decoder-only", "--out", new
    )
    assert "saved: exists: give a new folder" in refused("export", saved, "--format", "onnx", "--out", saved)
    assert "no SmallAutoencoder" in refused("export", "tiny", "--format", "diffusers", "--out", new)
