"""Every user error prints one line, exits with code 2 and leaves no file."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arcvq.errors import Stopped

Arcvq = Callable[..., Any]


@pytest.fixture
def refused(arcvq: Arcvq, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail with one line, exit code 2 and no change to any file; return the line."""

    def modification_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def run(*arguments: object) -> str:
        before = modification_times()
        result = arcvq(*arguments)
        assert result.code == 2
        assert result.output == ""
        assert result.errors.startswith("arcvq")
        assert result.errors.endswith("\n")
        assert result.errors.count("\n") == 1
        assert "Traceback" not in result.errors
        assert modification_times() == before
        return str(result.errors).removesuffix("\n")

    return run


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros((2, 7, 7), np.uint16))
    return tmp_path / "tokens.npz"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arcvq: the following arguments are required: COMMAND"),
        (["trian"], "arcvq: argument COMMAND: invalid choice: 'trian'"),
        (["systems", "--jsn"], "arcvq systems: unexpected argument '--jsn'"),
        (["systems", "extra"], "arcvq systems: unexpected argument 'extra'"),
        (["train"], "arcvq train: the following arguments are required: PRESET"),
        (["encode", "tiny"], "arcvq encode: the following arguments are required: IMAGE, --out"),
        (["reduce", "tiny", "--out", "smaller"], "arcvq reduce: the following arguments are required: --codes"),
        (["reduce", "tiny", "--codes", "0"], "arcvq reduce: argument --codes: expected a whole number above 0"),
        (["demo", "--steps", "0"], "arcvq demo: argument --steps: expected a whole number above 0"),
        (["demo", "--steps", "many"], "arcvq demo: argument --steps: expected a whole number above 0"),
        (["evaluate", "tiny", "--limit", "-3"], "arcvq evaluate: argument --limit: expected a whole number above 0"),
    ],
)
def test_wrong_command_or_option_is_named(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert refused(*arguments).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cifar10/arcvqvae"], "did you mean cifar10/arcvq-vae"),
        (["presets", "cifar/vq-vae"], "did you mean cifar10/vq-vae"),
        (["train", "none.yaml"], "none.yaml: no such file"),
        (["train", "sample/vq-vae"], "--out RUN"),
        (
            ["train", "sample/vq-vae", "--quantiser.codebook_size", "3"],
            "did you mean quantizer",
        ),
        (["train", "sample/vq-vae", "--quantizer.codebok_size", "3"], "did you mean codebook_size"),
        (["train", "sample/vq-vae", "--training.seed", "one"], "training.seed: expected a number"),
        (["train", "sample/vq-vae", "--training.seed"], "--training.seed needs a value"),
        (["train", "sample/vq-vae", "stray"], "unexpected argument 'stray'"),
        (["train", "sample/vq-vae", "--training.seed", "[1"], "'[1' is not readable as YAML"),
        (["train", "sample/vq-vae", "--system", "vqvae"], "did you mean vq-vae"),
        (["train", "sample/vq-vae", "--system", "[vq-vae]"], "unknown system '[vq-vae]'"),
        (["train", "sample/vq-vae", "--data.name", "imagenet", "--dry-run"], "unknown data set 'imagenet'"),
        (
            ["train", "sample/vq-vae", "--training.precision", "fp16", "--training.device=cpu", "--dry-run"],
            "needs a GPU",
        ),
    ],
)
def test_wrong_preset_or_setting_is_named(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"system: [vq-vae", "not readable as YAML"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"", "expected a mapping"),
        (b"- 1", "expected a mapping"),
        (b"training: {steps: 3}", "missing key 'system'"),
        (b"system: vq-vae\ntraining: {steps: three}", "training.steps: expected a number"),
        (b"system: vq-vae\ntraining: 3", "training: expected a mapping"),
        (b"system: vq-vae\nclass_path: os.system", "unknown key 'class_path'"),
        (b"system: !!python/object/apply:os.system ['touch executed']", "not readable as YAML"),
    ],
)
def test_wrong_yaml_is_named_with_reason(
    content: bytes, message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    line = refused("train", path, "--out", tmp_path / "run")
    assert line.startswith(f"arcvq: {path}: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tiny", "--codes", "257", "--out", "smaller"],
            "has 256 codes and can be reduced to 1 to 256 codes, not to 257",
        ),
        (["tiny", "--codes", "8", "--out", "taken"], "taken: exists: give a new folder"),
        (["nowhere", "--codes", "8", "--out", "smaller"], "nowhere: no such run or model"),
        (["taken", "--codes", "8", "--out", "smaller"], "taken: holds no model"),
    ],
)
def test_reduce_refuses_wrong_tokenizer_number_or_folder(
    arguments: list[str], message: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert message in refused("reduce", *arguments)
    assert not (tmp_path / "smaller").exists()


@pytest.mark.parametrize("runs", [["nowhere"], ["."], ["tiny"]], ids=["missing", "no run", "a model"])
def test_report_refuses_folder_that_is_no_run(
    runs: list[str], refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{runs[0]}: not a run" in refused("report", *runs, "--out", "page")
    assert not (tmp_path / "page").exists()


def test_train_refuses_folder_in_use(
    refused: Callable[..., str], tmp_path: Path, trained_run: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    command = ["train", "sample/arcvq-vae", *tiny_settings()]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("1")
    assert "is not a run" in refused(*command, "--out", tmp_path / "thesis")
    inside_file = tmp_path / "thesis" / "chapter.tex" / "run"
    assert f"{inside_file}: cannot be written" in refused(*command, "--out", inside_file)
    assert "/proc/run: cannot be written" in refused(*command, "--out", "/proc/run")
    other = refused(*command, "--training.learning_rate", "0.5", "--out", trained_run)
    assert "training.learning_rate is 0.001 there and 0.5 here" in other


@pytest.mark.parametrize("command", ["evaluate", "reconstruct", "encode", "decode"])
def test_missing_or_wrong_model_is_named(
    command: str, refused: Callable[..., str], tmp_path: Path, images: Path, tokens: Path
) -> None:
    rest: dict[str, list[object]] = {
        "evaluate": [],
        "reconstruct": [images, "--out", tmp_path / "out"],
        "encode": [images, "--out", tmp_path / "out.npz"],
        "decode": [tokens, "--out", tmp_path / "out"],
    }
    missing = tmp_path / "nowhere"
    assert f"{missing}: no such run or model" in refused(command, missing, *rest[command])
    assert "holds no model" in refused(command, images, *rest[command])
    assert "is a file" in refused(command, tokens, *rest[command])
    assert "could not be downloaded from the Hub" in refused(command, "someone/nothing", *rest[command])


def test_damaged_model_is_named(refused: Callable[..., str], trained_run: Path, tmp_path: Path, images: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    line = refused("encode", run, images, "--out", tmp_path / "tokens.npz")
    assert f"{weights}: truncated" in line


@pytest.mark.parametrize("command", ["reconstruct", "encode"])
def test_missing_or_damaged_image_is_named(
    command: str, refused: Callable[..., str], images: Path, tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "out.npz"]
    assert f"{images / 'none.png'}: no such image" in refused(command, "tiny", images / "none.png", *out)
    torn = images / "image-2.png"
    torn.write_bytes(torn.read_bytes()[:120])
    assert f"cannot read the image {torn}" in refused(command, "tiny", images, *out)
    (images / "text.png").write_text("no image")
    assert "cannot read the image" in refused(command, "tiny", images / "text.png", *out)
    assert "none of the" in refused(command, "tiny", images / "text.png", *out, "--on-error", "skip")
    (tmp_path / "empty").mkdir()
    assert "no images in " in refused(command, "tiny", tmp_path / "empty", *out)


class Executes:
    """An object whose unpickling makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def archive(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such token file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 torn"), "not a readable .npz token file"),
        (lambda path: path.write_bytes(b""), "not a readable .npz token file"),
        (lambda path: path.write_bytes(pickle.dumps(Executes(path.with_name("executed")))), "not a readable .npz"),
        (lambda path: archive(tokens=np.array([Executes(path.with_name("executed"))]))(path), "not a readable .npz"),
        (archive(codes=np.zeros((1, 7, 7), int)), "holds no array called tokens"),
        (archive(tokens=np.zeros((1, 7, 7))), "got float64"),
        (archive(tokens=np.zeros((7, 7), int)), "got shape (7, 7)"),
        (archive(tokens=np.zeros((1, 7, 7, 2), int)), "got shape (1, 7, 7, 2)"),
        (archive(tokens=np.zeros((1, 0, 7), int)), "got shape (1, 0, 7)"),
        (archive(tokens=np.full((1, 7, 7), 9999)), "token 9999 is out of range"),
        (archive(tokens=np.full((1, 7, 7), -2)), "token -2 is out of range"),
        (archive(tokens=np.zeros((2, 7, 7), int), names=np.array(["one"])), "has 2 token grids but 1 names"),
    ],
)
def test_wrong_token_file_is_refused(
    make: Callable[[Path], Any], message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.npz"
    make(path)
    assert message in refused("decode", "tiny", path, "--out", tmp_path / "out")
    assert not (tmp_path / "executed").exists()


def test_unwritable_out_is_named(refused: Callable[..., str], images: Path, tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside_file = tmp_path / "file" / "out.npz"
    for command, source in (("encode", images), ("reconstruct", images), ("decode", tokens)):
        assert f"{inside_file.parent}: is a file" in refused(command, "tiny", source, "--out", inside_file)
    assert refused("demo", "--out", inside_file, "--steps", "1").startswith(f"arcvq: {inside_file}")
    assert "ends in .npz" in refused("encode", "tiny", images, "--out", images)


def test_input_images_are_never_overwritten(
    refused: Callable[..., str], arcvq: Callable[..., Any], images: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in images.iterdir()}
    for source in (images, images / "image-1.png"):
        assert "would be overwritten" in refused("reconstruct", "tiny", source, "--out", images)
    refused("encode", "tiny", images / "image-1.png", "--out", images / "image-1.png")
    assert {path: path.read_bytes() for path in images.iterdir()} == before
    assert arcvq("reconstruct", "tiny", images, "--out", tmp_path / "elsewhere").code == 0


def test_run_folder_is_removed_if_first_step_fails(
    refused: Callable[..., str], arcvq: Callable[..., Any], tiny_settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = ["train", "sample/arcvq-vae", *tiny_settings(), "--quiet", "--out", tmp_path / "run"]
    assert "top_k is 100000" in refused(*command, "--quantizer.arc.top_k=100000")
    assert not (tmp_path / "run").exists()
    assert arcvq(*command).code == 0


def test_full_disk_leaves_no_file(
    refused: Callable[..., str], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    line = refused("encode", "tiny", images, "--out", tmp_path / "tokens.npz")
    assert f"{tmp_path / 'tokens.npz'}: the disk is full" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "precise"], "unknown protocol 'precise'"),
        (["--metrics", "snr"], "unknown metric 'snr'"),
        (["--data", "imagenet"], "unknown data set 'imagenet'"),
    ],
)
def test_unknown_protocol_metric_or_data_is_named(
    arguments: list[str], message: str, refused: Callable[..., str], trained_run: Path
) -> None:
    assert message in refused("evaluate", trained_run, "--limit", "4", *arguments)


def test_evaluate_of_model_asks_for_data(refused: Callable[..., str]) -> None:
    assert "--data NAME" in refused("evaluate", "tiny")


def test_images_of_other_sizes_are_resized(arcvq: Arcvq, tmp_path: Path) -> None:
    Image.new("RGBA", (301, 77), (10, 200, 30, 128)).save(tmp_path / "photo.png")
    result = arcvq("reconstruct", "tiny", tmp_path / "photo.png", "--out", tmp_path / "out")
    assert result.code == 0
    assert Image.open(tmp_path / "out" / "photo.png").size == (28, 28)


def test_wrong_data_leaves_no_run_folder(
    refused: Callable[..., str], tiny_settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    for setting in ("--data.name=smaple", "--data.image_size=30"):
        refused("train", "sample/arcvq-vae", *tiny_settings(), setting, "--out", tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_out_that_is_a_folder_is_refused(refused: Callable[..., str], images: Path) -> None:
    (images.parent / "folder.npz").mkdir()
    assert "is a folder" in refused("encode", "tiny", images, "--out", images.parent / "folder.npz")
    assert "is a folder" in refused("evaluate", "tiny", "--data", "sample", "--out", ".")


def test_out_of_memory_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused("train", "sample/vq-vae", "--autoencoder.width", "1000000000000", "--out", tmp_path / "run")
    assert "memory" in message


def test_runtime_error_about_memory_is_not_out_of_memory(
    arcvq: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("arcvq.demo.run_demo", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        arcvq("demo")


def test_interrupted_demo_exits_with_130(
    arcvq: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Stopped("runs/demo/vq-vae: stopped at step 3")

    monkeypatch.setattr("arcvq.demo.run_demo", interrupted)
    result = arcvq("demo", "--out", tmp_path / "demo")
    assert result.code == 130
    assert result.errors == "runs/demo/vq-vae: stopped at step 3\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "fp8"), "unknown precision 'fp8'"),
        (("--precision", "tf32", "--device", "cpu"), "precision tf32 needs an NVIDIA GPU"),
        (("--device", "gpux"), "unknown device 'gpux'"),
    ],
)
def test_wrong_precision_or_device_is_refused_first(
    options: tuple[str, ...], message: str, refused: Callable[..., str], images: Path, tmp_path: Path
) -> None:
    assert message in refused("encode", "tiny", images, "--out", tmp_path / "tokens.npz", *options)
    assert message in refused("reconstruct", "tiny", images, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "tokens.npz").exists()
    assert not (tmp_path / "out").exists()


def test_training_with_lpips_says_how_to_get_missing_weights(
    refused: Callable[..., str],
    tiny_settings: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ARCVQ_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    settings = tiny_settings({"objective.kind": "perceptual"})
    line = refused("train", "sample/arcvq-vae", *settings, "--out", tmp_path / "run")
    assert "torchvision.models.vgg16(weights='DEFAULT')" in line
    assert "vgg16-features.safetensors into the folder that ARCVQ_WEIGHTS points to" in line
