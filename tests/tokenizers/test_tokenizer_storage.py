"""Saved tokenizers load unchanged, and wrong or damaged files are refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from arcvq import VQ, ArcVQ, ArcvqError, Ball, Tokenizer
from arcvq.data import to_unit
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.quantizers import (
    CVQ,
    EMAVQ,
    FSQ,
    HVQ,
    LFQ,
    SQ,
    GroupedVQ,
    MultichannelVQ,
    ProjectedVQ,
    Quantizer,
    ResidualVQ,
    Restart,
    SimVQ,
)
from arcvq.tokenizers import EMBEDDED
from arcvq.tokenizers.saving import to_config

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)


def make_tokenizer() -> Tokenizer:
    torch.manual_seed(3)
    return Tokenizer(SmallAutoencoder(1, SMALL), ArcVQ(8, 32), image_size=(28, 28), system="arcvq-vae").eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return make_tokenizer().save_pretrained(tmp_path / "model")


def error_of(source: str | Path) -> str:
    with pytest.raises(ArcvqError) as raised:
        Tokenizer.from_pretrained(source)
    message = str(raised.value)
    assert "\n" not in message
    return message


def edit_config(saved: Path, **changes: Any) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, **changes}))


def test_loaded_tokenizer_gives_same_tokens_and_images(saved: Path, sample_pixels: Tensor) -> None:
    before, after = make_tokenizer(), Tokenizer.from_pretrained(saved)
    images = to_unit(sample_pixels)
    assert torch.equal(after.encode(images), before.encode(images))
    assert torch.equal(after.reconstruct(images), before.reconstruct(images))
    assert to_config(after) == to_config(before)
    assert (after.system, after.image_size, after.training) == ("arcvq-vae", (28, 28), False)


@pytest.mark.parametrize(
    "quantizer",
    [
        VQ(8, 32),
        VQ(8, 32, metric="cosine", loss_space="unit", output="unit"),
        ResidualVQ(8, 32, depth=3),
        ResidualVQ(8, 32, depth=3, shared=False, codebook={"kind": "arcvq"}),
        GroupedVQ(8, 32, groups=4, codebook={"kind": "simvq"}),
        MultichannelVQ(8, 32),
        ProjectedVQ(8, 32, feature_dim=5),
        VQ(8, 16, heads=2, metric="cosine", restart=Restart(decay=0.5)),
        ArcVQ(8, 32, code_dim=4, arc=None, ball=Ball(schedule="constant")),
        EMAVQ(8, 32, decay=0.9),
        CVQ(8, 32, anchor="random"),
        SimVQ(8, 32, ball=Ball()),
        HVQ(8, 32, revival=None),
        SQ(8, 32),
        FSQ(8, 64),
        LFQ(8, 64),
    ],
)
def test_quantizer_options_and_state_are_saved(quantizer: Quantizer, tmp_path: Path, sample_pixels: Tensor) -> None:
    with torch.no_grad():
        quantizer.step.fill_(17)
    tokenizer = Tokenizer(SmallAutoencoder(1, SMALL), quantizer).eval()
    loaded = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path / "model"))
    assert type(loaded.quantizer) is type(quantizer)
    assert loaded.quantizer.config == quantizer.config
    assert loaded.image_size is None
    expected = tokenizer.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    images = to_unit(sample_pixels)
    assert torch.equal(loaded.encode(images), tokenizer.encode(images))
    half = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path / "half", dtype=torch.bfloat16)).state_dict()
    assert all(half[name].dtype == tensor.dtype for name, tensor in expected.items())
    assert all(torch.allclose(half[name], tensor, rtol=2**-8) for name, tensor in expected.items())


def test_saved_folder_has_config_weights_and_card(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]
    config = json.loads((saved / "config.json").read_text())
    assert config["format"] == "arcvq-tokenizer-2"
    assert config["autoencoder"]["kind"] == "small"
    assert (config["quantizer"]["kind"], config["quantizer"]["codebook_size"]) == ("arcvq", 32)
    card = (saved / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: arcvq\n")
    assert "| tokens per image | 49 |" in card
    assert "| bits per image | 245 |" in card


def test_notes_are_rows_of_model_card(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path / "model", notes={"data": "sample", "steps": 400})
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| data | sample |\n| steps | 400 |" in card
    assert card.endswith("| data terms | Fashion-MNIST, MIT licence |\n")


def test_save_replaces_older_save(saved: Path) -> None:
    other = Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16))
    other.save_pretrained(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert Tokenizer.from_pretrained(saved).channels == 3
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]


def test_unregistered_quantizer_class_is_not_saved(tmp_path: Path) -> None:
    class Mine(VQ):
        pass

    with pytest.raises(ArcvqError, match="Mine would be loaded as VQ"):
        Tokenizer(SmallAutoencoder(1, SMALL), Mine(8, 16)).save_pretrained(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_save_refuses_folder_with_other_files(saved: Path) -> None:
    (saved / "precious.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(ArcvqError, match=r"has other files \(precious\.txt\)"):
        Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16)).save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_failed_save_keeps_older_save(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArcvqError) as raised:
        Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16)).save_pretrained(saved)
    assert "the disk is full: free some space" in str(raised.value)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]


def test_run_folder_loads_its_model(trained_run: Path) -> None:
    from_run, from_model = Tokenizer.from_pretrained(trained_run), Tokenizer.from_pretrained(trained_run / "model")
    assert torch.equal(from_run.quantizer.codebook, from_model.quantizer.codebook)
    assert from_run.system == "arcvq-vae"


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_tokenizer_loads_by_name(name: str, sample_pixels: Tensor) -> None:
    tokenizer = Tokenizer.from_pretrained(name)
    images = to_unit(sample_pixels)
    tokens = tokenizer.encode(images)
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))
    # It is trained: much better than the best constant image.
    error = (tokenizer.reconstruct(images) - images).square().mean()
    assert error < 0.2 * images.var()


def test_missing_tokenizer_error_names_alternatives(tmp_path: Path) -> None:
    assert "an embedded model (tiny) or a Hub id" in error_of("nowhere")
    assert error_of(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: no such run or model")
    assert error_of(tmp_path).startswith(f"{tmp_path}: holds no model")
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    assert error_of(tmp_path).startswith(f"{tmp_path}: training has not finished")


def test_file_instead_of_folder_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    assert error_of(path).startswith(f"{path}: is a file")


def test_missing_weights_error_names_file(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert "model.safetensors is missing" in error_of(saved)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_refused(saved: Path, kept: int) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert error_of(saved).startswith(f"{weights}: truncated or not a safetensors file")


def test_pickled_weights_are_refused(saved: Path) -> None:
    torch.save(make_tokenizer().state_dict(), saved / "model.safetensors")
    assert "truncated or not a safetensors file" in error_of(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("autoencoder.encoder.0.weight"),
            "tensors 1 missing (e.g. autoencoder.encoder.0.weight)",
        ),
        (lambda tensors: tensors.update(alien=torch.zeros(1)), "tensors 1 unexpected (e.g. alien)"),
        (
            lambda tensors: tensors.update({"quantizer.codebook": torch.zeros(31, 8)}),
            "tensors 1 of the wrong shape (e.g. quantizer.codebook)",
        ),
    ],
)
def test_weights_of_another_model_are_refused(saved: Path, change: Any, message: str) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights)
    assert message in error_of(saved)
    assert error_of(saved).startswith(f"{weights}: ")


def test_checkpoint_of_another_architecture_is_refused(saved: Path) -> None:
    save_file({"conv.weight": torch.zeros(2, 2)}, saved / "model.safetensors")
    assert "missing (e.g. autoencoder.decoder.0.bias), 1 unexpected (e.g. conv.weight)" in error_of(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "arcvq-tokenizer-1"}, "its format is 'arcvq-tokenizer-1', expected 'arcvq-tokenizer-2'"),
        ({"format": None}, "its format is None"),
        ({"autoencoder": {"kind": "smal"}}, "autoencoder.kind: unknown autoencoder 'smal': did you mean small?"),
        ({"autoencoder": {"kind": ["small"]}}, "autoencoder.kind: unknown autoencoder ['small']"),
        ({"autoencoder": {"kind": "small", "widht": 8}}, "unknown key 'autoencoder.widht': did you mean width?"),
        ({"autoencoder": None}, "autoencoder: expected a mapping with a kind, got None"),
        ({"autoencoder": {"residual_blocks": 10**7}}, "residual_blocks must be from 0 to 256"),
        ({"autoencoder": {"width": 2**70}}, "too large to build"),
        ({"quantizer": {"kind": "arcvqs"}}, "quantizer.kind: unknown quantizer 'arcvqs': did you mean arcvq"),
        ({"quantizer": {"codebook_size": "many"}}, "quantizer.codebook_size: expected a number, got 'many'"),
        ({"quantizer": None}, "quantizer: expected a mapping with a kind, got None"),
        ({"channels": "three"}, "channels: expected a number, got 'three'"),
        ({"channels": "3"}, "channels: expected a number, got '3'"),
        ({"channels": 2.5}, "channels: expected a whole number, got 2.5"),
        ({"channels": True}, "channels: expected a number, got True"),
        ({"channels": -1}, "channels must be at least 1, got -1"),
        ({"image_size": [28]}, "image_size: expected a height and a width"),
        ({"image_size": [28, 28, 28]}, "image_size: expected a height and a width"),
        ({"image_size": ["a", "b"]}, "image_size[0]: expected a number, got 'a'"),
        ({"image_size": [10**9, 28]}, "image_size: expected a height and a width from 1 to 16384"),
        ({"system": {}}, "system: expected text, got {}"),
        ({"quantizer": {"kind": "fsq", "codebook_size": 2**60}}, "too large to build"),
    ],
)
def test_wrong_config_is_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(saved, **changes)
    assert error_of(saved).startswith(f"{saved / 'config.json'}: ")
    assert message in error_of(saved)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("autoencoder", {"width": 10**6}),
        ("autoencoder", {"residual_blocks": 100}),
        ("quantizer", {"codebook_size": 10**12}),
    ],
)
def test_config_larger_than_weights_is_refused_before_building(saved: Path, part: str, changes: dict[str, int]) -> None:
    config = json.loads((saved / "config.json").read_text())
    edit_config(saved, **{part: {**config[part], **changes}})
    assert "does not match its config.json" in error_of(saved)


def test_too_large_generated_codebook_is_refused(tmp_path: Path) -> None:
    saved = Tokenizer(SmallAutoencoder(1, SMALL), FSQ(8, 64)).save_pretrained(tmp_path / "model")
    levels = {"codebook_size": 2**40, "levels": [2**20, 2**20], "code_dim": 2}
    edit_config(saved, quantizer={**json.loads((saved / "config.json").read_text())["quantizer"], **levels})
    assert "quantizer.codebook would have" in error_of(saved)


@pytest.mark.parametrize("name", ["quantizer.codebook", "autoencoder.decoder.0.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused_by_name(saved: Path, name: str, value: float) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, weights)
    assert error_of(saved).startswith(f"{weights}: {name} has NaN or infinite values")


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"'])
def test_config_that_is_not_a_json_object_is_refused(saved: Path, content: str) -> None:
    (saved / "config.json").write_text(content)
    assert error_of(saved).startswith(f"{saved / 'config.json'}: ")


@pytest.mark.parametrize("place", ["", "autoencoder", "quantizer"])
def test_config_with_class_path_is_refused_and_runs_no_code(saved: Path, place: str, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    injected = {"class_path": "os.system", "init_args": {"command": f"touch {executed}"}}
    config = json.loads((saved / "config.json").read_text())
    target = config[place] if place else config
    target.update(injected)
    (saved / "config.json").write_text(json.dumps(config))
    assert "unknown key" in error_of(saved)
    assert "class_path" in error_of(saved)
    assert not executed.exists()


def test_hub_repository_loads(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert Tokenizer.from_pretrained("someone/tokenizer").system == "arcvq-vae"
    assert asked == [("someone/tokenizer", ["config.json", "model.safetensors", "tokenizer/*"])]


@pytest.mark.parametrize(
    "error", [OSError("cannot\nreach the Hub"), ConnectionError("offline"), RuntimeError("no such repository")]
)
def test_failed_hub_download_is_a_one_line_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    message = error_of("someone/tokenizer")
    assert f"could not be downloaded from the Hub ({' '.join(str(error).split())})" in message


def test_hub_without_network_is_a_one_line_error() -> None:
    assert "could not be downloaded from the Hub" in error_of("someone/missing-tokenizer")


def test_hub_repository_without_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(tmp_path))
    assert "config.json is missing" in error_of("someone/else")


def test_push_to_hub_uploads_a_loadable_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Api:
        def create_repo(self, repository: str, private: bool, exist_ok: bool) -> None:
            calls.append(("create", repository, private, exist_ok))

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            calls.append(("upload", repo_id))
            shutil.copytree(folder_path, tmp_path / "hub")
            return f"https://hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    address = make_tokenizer().push_to_hub("someone/tokenizer", private=True, notes={"data": "sample"})
    assert address == "https://hub/someone/tokenizer"
    assert calls == [("create", "someone/tokenizer", True, True), ("upload", "someone/tokenizer")]
    loaded = Tokenizer.from_pretrained(tmp_path / "hub")
    assert torch.equal(loaded.quantizer.codebook, make_tokenizer().quantizer.codebook)
    assert "| data | sample |" in (tmp_path / "hub" / "README.md").read_text()
    shutil.rmtree(tmp_path / "hub")
    make_tokenizer().push_to_hub("someone/half", dtype=torch.float16)
    assert load_file(tmp_path / "hub" / "model.safetensors")["quantizer.codebook"].dtype == torch.float16
