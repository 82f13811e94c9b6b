"""Whatever a person can get wrong ends in one line, exit code 2, and nothing half-written."""

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

Run = Callable[..., Any]


@pytest.fixture
def refused(arcvq: Run, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail: one line, exit code 2, no file made, changed or removed. Returns the line."""

    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def run(*arguments: object) -> str:
        before = state()
        said = arcvq(*arguments)
        assert said.code == 2
        assert said.output == ""
        assert said.errors.startswith("arcvq")
        assert said.errors.endswith("\n")
        assert said.errors.count("\n") == 1
        assert "Traceback" not in said.errors
        assert state() == before
        return str(said.errors).removesuffix("\n")

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
        (["systems", "--jsn"], "arcvq: unexpected argument '--jsn' (see arcvq --help)"),
        (["systems", "extra"], "arcvq: unexpected argument 'extra'"),
        (["train"], "arcvq train: the following arguments are required: PRESET"),
        (["encode", "tiny"], "arcvq encode: the following arguments are required: IMAGE, --out"),
        (["demo", "--steps", "0"], "arcvq demo: argument --steps: expected a whole number above 0, got '0'"),
        (["demo", "--steps", "many"], "arcvq demo: argument --steps: expected a whole number above 0, got 'many'"),
        (["evaluate", "tiny", "--limit", "-3"], "arcvq evaluate: argument --limit: expected a whole number above 0"),
    ],
)
def test_an_unknown_command_or_option_is_named(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert refused(*arguments).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cifar10/arcvqvae"], "arcvq: unknown preset 'cifar10/arcvqvae': did you mean cifar10/arcvq-vae"),
        (["presets", "cifar/vq-vae"], "arcvq: unknown preset 'cifar/vq-vae': did you mean cifar10/vq-vae"),
        (["train", "none.yaml"], "arcvq: none.yaml: no such file"),
        (["train", "sample/vq-vae"], "arcvq: train needs a folder to write to: --out RUN"),
        (
            ["train", "sample/vq-vae", "--quantiser.codebook_size", "3"],
            "unknown key 'quantiser': did you mean quantizer",
        ),
        (["train", "sample/vq-vae", "--quantizer.codebok_size", "3"], "did you mean codebook_size"),
        (["train", "sample/vq-vae", "--training.seed", "one"], "training.seed: expected a number, got 'one' (str)"),
        (["train", "sample/vq-vae", "--training.seed"], "--training.seed needs a value"),
        (["train", "sample/vq-vae", "stray"], "unexpected argument 'stray'"),
        (["train", "sample/vq-vae", "--training.seed", "[1"], "the value '[1' is not readable as YAML"),
        (["train", "sample/vq-vae", "--system", "vqvae"], "unknown system 'vqvae': did you mean vq-vae"),
        (["train", "sample/vq-vae", "--system", "[vq-vae]"], "unknown system '[vq-vae]'"),
        (["train", "sample/vq-vae", "--data.name", "imagenet", "--dry-run"], "unknown data set 'imagenet'"),
        (
            ["train", "sample/vq-vae", "--training.precision", "fp16", "--training.device=cpu", "--dry-run"],
            "needs a GPU",
        ),
    ],
)
def test_a_wrong_preset_or_setting_is_named(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"system: [vq-vae", "not readable as YAML"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"", "expected a mapping of keys to values, got None"),
        (b"- 1", "expected a mapping of keys to values, got [1]"),
        (b"training: {steps: 3}", "missing key 'system'"),
        (b"system: vq-vae\ntraining: {steps: three}", "training.steps: expected a number, got 'three'"),
        (b"system: vq-vae\ntraining: 3", "training: expected a mapping of keys to values, got 3"),
        (b"system: vq-vae\nclass_path: os.system", "unknown key 'class_path'"),
        (b"system: !!python/object/apply:os.system ['touch executed']", "not readable as YAML"),
    ],
)
def test_a_broken_yaml_is_answered_with_what_is_wrong_in_it(
    content: bytes, message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    line = refused("train", path, "--out", tmp_path / "run")
    assert line.startswith(f"arcvq: {path}: ")
    assert message in line


@pytest.mark.parametrize("runs", [["nowhere"], ["."], ["tiny"]], ids=["missing", "no run", "a model"])
def test_a_report_is_of_runs_only(
    runs: list[str], refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{runs[0]}: not a run" in refused("report", *runs, "--out", "page")
    assert not (tmp_path / "page").exists()


def test_a_folder_of_something_else_is_not_trained_into(
    refused: Callable[..., str], tmp_path: Path, trained_run: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    command = ["train", "sample/arcvq-vae", *tiny_settings()]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("1")
    assert refused(*command, "--out", tmp_path / "thesis").endswith("exists and is not a run: choose another --out")
    under_a_file = tmp_path / "thesis" / "chapter.tex" / "run"
    assert refused(*command, "--out", under_a_file) == f"arcvq: {under_a_file}: cannot be written: Not a directory"
    assert refused(*command, "--out", "/proc/run").startswith("arcvq: /proc/run: cannot be written: ")
    other = refused(*command, "--training.learning_rate", "0.5", "--out", trained_run)
    assert other.endswith("training.learning_rate is 0.001 there and 0.5 here; choose another --out")


@pytest.mark.parametrize("command", ["evaluate", "reconstruct", "encode", "decode"])
def test_a_run_that_is_not_there_or_is_something_else_is_named(
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
    assert "holds no tokenizer" in refused(command, images, *rest[command])
    assert "is a file; expected the folder of a run" in refused(command, tokens, *rest[command])
    assert "could not be had from the Hub" in refused(command, "someone/nothing", *rest[command])


def test_a_damaged_model_is_named(refused: Callable[..., str], trained_run: Path, tmp_path: Path, images: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    line = refused("encode", run, images, "--out", tmp_path / "tokens.npz")
    assert line.startswith(f"arcvq: {weights}: truncated or not a safetensors file")


@pytest.mark.parametrize("command", ["reconstruct", "encode"])
def test_an_image_that_is_missing_or_damaged_is_named(
    command: str, refused: Callable[..., str], images: Path, tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "out.npz"]
    assert f"{images / 'none.png'}: no such image" in refused(command, "tiny", images / "none.png", *out)
    torn = images / "image-2.png"
    torn.write_bytes(torn.read_bytes()[:120])
    assert f"cannot read the image {torn}" in refused(command, "tiny", images, *out)
    (images / "text.png").write_text("no image")
    assert "cannot read the image" in refused(command, "tiny", images / "text.png", *out)
    assert "none of the 1 images can be read" in refused(
        command, "tiny", images / "text.png", *out, "--on-error", "skip"
    )
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
        (archive(tokens=np.zeros((1, 7, 7))), "tokens must be whole numbers, got float64"),
        (archive(tokens=np.zeros((7, 7), int)), "expected tokens (n, h, w), got shape (7, 7)"),
        (archive(tokens=np.zeros((1, 7, 7, 2), int)), "expected tokens (B, h, w), got shape (1, 7, 7, 2)"),
        (archive(tokens=np.zeros((1, 0, 7), int)), "expected tokens (n, h, w), got shape (1, 0, 7)"),
        (archive(tokens=np.full((1, 7, 7), 9999)), "token 9999 is out of range"),
        (archive(tokens=np.full((1, 7, 7), -2)), "token -2 is out of range"),
        (archive(tokens=np.zeros((2, 7, 7), int), names=np.array(["one"])), "has 2 token grids but 1 names"),
    ],
)
def test_a_token_file_that_is_none_is_refused(
    make: Callable[[Path], Any], message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.npz"
    make(path)
    assert message in refused("decode", "tiny", path, "--out", tmp_path / "out")
    assert not (tmp_path / "executed").exists()


def test_a_place_that_cannot_be_written_is_named(
    refused: Callable[..., str], images: Path, tokens: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    under = tmp_path / "file" / "out.npz"
    assert refused("encode", "tiny", images, "--out", under) == f"arcvq: {under.parent}: is a file; expected a folder"
    for command, source in (("reconstruct", images), ("decode", tokens)):
        assert f"{under.parent}: is a file; expected a folder" in refused(command, "tiny", source, "--out", under)
    assert refused("demo", "--out", under, "--steps", "1").startswith(f"arcvq: {under}")
    assert "a token file's name ends in .npz" in refused("encode", "tiny", images, "--out", images)


def test_the_images_that_are_read_are_never_written_over(
    refused: Callable[..., str], arcvq: Callable[..., Any], images: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in images.iterdir()}
    for source in (images, images / "image-1.png"):
        assert "would be overwritten: choose another --out" in refused("reconstruct", "tiny", source, "--out", images)
    refused("encode", "tiny", images / "image-1.png", "--out", images / "image-1.png")
    assert {path: path.read_bytes() for path in images.iterdir()} == before
    assert arcvq("reconstruct", "tiny", images, "--out", tmp_path / "elsewhere").code == 0


def test_what_the_first_step_refuses_leaves_the_place_free(
    refused: Callable[..., str], arcvq: Callable[..., Any], tiny_settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = ["train", "sample/arcvq-vae", *tiny_settings(), "--quiet", "--out", tmp_path / "run"]
    assert "top_k is 100000" in refused(*command, "--quantizer.arc.top_k=100000")
    assert not (tmp_path / "run").exists()
    assert arcvq(*command).code == 0


def test_a_full_disk_is_named_and_leaves_nothing(
    refused: Callable[..., str], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    line = refused("encode", "tiny", images, "--out", tmp_path / "tokens.npz")
    assert line == f"arcvq: {tmp_path / 'tokens.npz'}: the disk is full: free some space or choose another --out"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "precise"], "unknown protocol 'precise'"),
        (["--metrics", "snr"], "unknown metric 'snr'"),
        (["--data", "imagenet"], "unknown data set 'imagenet'"),
    ],
)
def test_a_measurement_of_something_unknown_is_refused(
    arguments: list[str], message: str, refused: Callable[..., str], trained_run: Path
) -> None:
    assert message in refused("evaluate", trained_run, "--limit", "4", *arguments)


def test_a_model_without_a_run_asks_for_a_data_set(refused: Callable[..., str]) -> None:
    assert refused("evaluate", "tiny").endswith("so it has no data set of its own: say --data NAME")


def test_images_that_do_not_fit_the_tokenizer_are_resized_not_refused(arcvq: Run, tmp_path: Path) -> None:
    Image.new("RGBA", (301, 77), (10, 200, 30, 128)).save(tmp_path / "photo.png")
    said = arcvq("reconstruct", "tiny", tmp_path / "photo.png", "--out", tmp_path / "out")
    assert said.code == 0
    assert Image.open(tmp_path / "out" / "photo.png").size == (28, 28)


def test_a_start_that_fails_leaves_no_folder_behind(
    refused: Callable[..., str], tiny_settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    for setting in ("--data.name=smaple", "--data.image_size=30"):
        refused("train", "sample/arcvq-vae", *tiny_settings(), setting, "--out", tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_result_file_that_is_a_folder_is_refused_before_the_work(refused: Callable[..., str], images: Path) -> None:
    (images.parent / "folder.npz").mkdir()
    assert "is a folder; expected the name of a file" in refused(
        "encode", "tiny", images, "--out", images.parent / "folder.npz"
    )
    assert "is a folder; expected the name of a file" in refused("evaluate", "tiny", "--data", "sample", "--out", ".")


def test_a_model_too_large_for_the_memory_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused("train", "sample/vq-vae", "--tokenizer.width", "1000000000000", "--out", tmp_path / "run")
    assert "memory" in message


def test_an_interrupted_demo_says_how_to_go_on(
    arcvq: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Stopped("runs/demo/vq-vae: stopped at step 3 of 400; the same command goes on")

    monkeypatch.setattr("arcvq.demo.run_demo", interrupted)
    said = arcvq("demo", "--out", tmp_path / "demo")
    assert said.code == 130
    assert said.errors == "runs/demo/vq-vae: stopped at step 3 of 400; the same command goes on\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "fp8"), "unknown precision 'fp8': expected one of fp32, tf32, fp16, bf16"),
        (("--precision", "tf32", "--device", "cpu"), "precision tf32 needs an NVIDIA GPU: on a CPU use fp32 or bf16"),
        (("--device", "gpux"), "unknown device 'gpux'"),
    ],
)
def test_a_wrong_way_of_running_is_refused_before_the_work(
    options: tuple[str, ...], message: str, refused: Callable[..., str], images: Path, tmp_path: Path
) -> None:
    assert message in refused("encode", "tiny", images, "--out", tmp_path / "tokens.npz", *options)
    assert message in refused("reconstruct", "tiny", images, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "tokens.npz").exists()
    assert not (tmp_path / "out").exists()
