"""Saved tokenizers: what is saved loads as it was, and what is not one is refused in one line."""

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
from arcvq.quantizers import CVQ, EMAVQ, FSQ, HVQ, LFQ, SQ, Quantizer, Restart, SimVQ
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


def edit(saved: Path, **changes: Any) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_saved_tokenizer_loads_to_the_same_tokens_and_images(saved: Path, sample_pixels: Tensor) -> None:
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
def test_every_option_of_the_quantizer_travels(quantizer: Quantizer, tmp_path: Path, sample_pixels: Tensor) -> None:
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


def test_a_folder_holds_a_configuration_the_weights_and_a_card(saved: Path) -> None:
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


def test_notes_become_rows_of_the_card(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path / "model", notes={"data": "sample", "steps": 400})
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| data | sample |\n| steps | 400 |" in card


def test_saving_over_a_saved_tokenizer_replaces_it(saved: Path) -> None:
    other = Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16))
    other.save_pretrained(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert Tokenizer.from_pretrained(saved).channels == 3
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]


def test_a_quantizer_that_would_be_loaded_as_another_class_is_not_saved(tmp_path: Path) -> None:
    class Mine(VQ):
        pass

    with pytest.raises(ArcvqError, match="Mine would be loaded as VQ"):
        Tokenizer(SmallAutoencoder(1, SMALL), Mine(8, 16)).save_pretrained(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_things_is_not_taken_over(saved: Path) -> None:
    (saved / "precious.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(ArcvqError, match=r"holds other things \(precious\.txt\)"):
        Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16)).save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_failed_save_leaves_the_old_one_whole(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArcvqError) as raised:
        Tokenizer(SmallAutoencoder(3, SMALL), VQ(8, 16)).save_pretrained(saved)
    assert "the disk is full: free some space" in str(raised.value)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model"]


def test_a_run_folder_gives_its_model(trained_run: Path) -> None:
    from_run, from_model = Tokenizer.from_pretrained(trained_run), Tokenizer.from_pretrained(trained_run / "model")
    assert torch.equal(from_run.quantizer.codebook, from_model.quantizer.codebook)
    assert from_run.system == "arcvq-vae"


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_tokenizer_loads_by_its_name_and_works(name: str, sample_pixels: Tensor) -> None:
    tokenizer = Tokenizer.from_pretrained(name)
    images = to_unit(sample_pixels)
    tokens = tokenizer.encode(images)
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))
    # A trained one: better by far than the best constant image.
    error = (tokenizer.reconstruct(images) - images).square().mean()
    assert error < 0.2 * images.var()


def test_a_tokenizer_that_is_not_there_is_answered_with_what_could_be(tmp_path: Path) -> None:
    assert error_of("nowhere") == (
        "nowhere: no such run or model: expected a folder, an embedded tokenizer (tiny) or a Hub id owner/name"
    )
    assert error_of(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere'}: no such run or model")
    assert error_of(tmp_path) == f"{tmp_path}: holds no tokenizer: neither config.json nor model/config.json is there"
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    assert error_of(tmp_path).startswith(f"{tmp_path}: its training has not ended, and there is no model yet: ")


def test_a_file_is_not_a_folder(saved: Path) -> None:
    path = saved / "model.safetensors"
    assert error_of(path) == f"{path}: is a file; expected the folder of a run or of a saved tokenizer"


def test_missing_weights_are_named(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert error_of(saved) == f"{saved}: not a saved tokenizer: model.safetensors is missing"


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_refused(saved: Path, kept: int) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert error_of(saved).startswith(f"{weights}: truncated or not a safetensors file")


def test_a_pickle_is_not_read(saved: Path) -> None:
    torch.save(make_tokenizer().state_dict(), saved / "model.safetensors")
    assert "truncated or not a safetensors file" in error_of(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("autoencoder.encoder.0.weight"),
            "tensors 1 missing (e.g. autoencoder.encoder.0.weight)",
        ),
        (lambda tensors: tensors.update(alien=torch.zeros(1)), "tensors 1 foreign (e.g. alien)"),
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
    assert error_of(saved) == f"{weights}: does not fit its config.json: {message}"


def test_a_foreign_checkpoint_is_refused(saved: Path) -> None:
    save_file({"conv.weight": torch.zeros(2, 2)}, saved / "model.safetensors")
    assert "missing (e.g. autoencoder.decoder.0.bias), 1 foreign (e.g. conv.weight)" in error_of(saved)


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
def test_a_configuration_that_describes_no_tokenizer_is_refused(
    saved: Path, changes: dict[str, Any], message: str
) -> None:
    edit(saved, **changes)
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
def test_a_configuration_larger_than_the_weights_is_refused_before_it_is_built(
    saved: Path, part: str, changes: dict[str, int]
) -> None:
    config = json.loads((saved / "config.json").read_text())
    edit(saved, **{part: {**config[part], **changes}})
    assert "does not fit its config.json" in error_of(saved)


def test_codes_that_are_in_no_file_are_refused_when_too_large(tmp_path: Path) -> None:
    saved = Tokenizer(SmallAutoencoder(1, SMALL), FSQ(8, 64)).save_pretrained(tmp_path / "model")
    levels = {"codebook_size": 2**40, "levels": [2**20, 2**20], "code_dim": 2}
    edit(saved, quantizer={**json.loads((saved / "config.json").read_text())["quantizer"], **levels})
    assert "quantizer.codebook would have" in error_of(saved)


@pytest.mark.parametrize("name", ["quantizer.codebook", "autoencoder.decoder.0.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(saved: Path, name: str, value: float) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, weights)
    assert error_of(saved).startswith(f"{weights}: {name} holds NaN or infinite numbers")


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"'])
def test_a_configuration_that_is_no_json_object_is_refused(saved: Path, content: str) -> None:
    (saved / "config.json").write_text(content)
    assert error_of(saved).startswith(f"{saved / 'config.json'}: ")


@pytest.mark.parametrize("place", ["", "autoencoder", "quantizer"])
def test_a_configuration_that_asks_for_code_is_refused_and_none_runs(saved: Path, place: str, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    request = {"class_path": "os.system", "init_args": {"command": f"touch {proof}"}}
    config = json.loads((saved / "config.json").read_text())
    target = config[place] if place else config
    target.update(request)
    (saved / "config.json").write_text(json.dumps(config))
    assert "unknown key" in error_of(saved)
    assert "class_path" in error_of(saved)
    assert not proof.exists()


def test_a_repository_on_the_hub_loads_from_its_download(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert Tokenizer.from_pretrained("someone/tokenizer").system == "arcvq-vae"
    assert asked == [("someone/tokenizer", ["config.json", "model.safetensors"])]


@pytest.mark.parametrize(
    "error", [OSError("cannot\nreach the Hub"), ConnectionError("offline"), RuntimeError("no such repository")]
)
def test_a_repository_that_cannot_be_had_is_answered_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert error_of("someone/tokenizer") == (
        f"someone/tokenizer: no such folder, and it could not be had from the Hub ({' '.join(str(error).split())})"
    )


def test_without_a_network_the_hub_is_answered_in_one_line() -> None:
    message = error_of("someone/tokenizer-that-is-nowhere")
    assert "no such folder, and it could not be had from the Hub" in message


def test_a_repository_that_holds_no_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(tmp_path))
    assert error_of("someone/else") == f"{tmp_path}: not a saved tokenizer: config.json is missing"


def test_pushing_uploads_what_from_pretrained_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
