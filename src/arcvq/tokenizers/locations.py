"""Where a saved model lies: in a folder, a run, the package, or on the Hugging Face Hub."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from arcvq.errors import ArcvqError

# Names of the trained models in the package.
EMBEDDED = ("tiny",)
# Where a generator has its tokenizer.
TOKENIZER = "tokenizer"
# What is downloaded of a repository.
PATTERNS = ["config.json", "model.safetensors", f"{TOKENIZER}/*"]


def find_model_folder(source: str | Path) -> Path:
    """The folder with the config.json of a run, a saved or embedded model, or a Hub repository, which is downloaded."""
    path = Path(source)
    for candidate in (path, path / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    is_run = (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()
    if is_run and not (path / "training.json").is_file():
        raise ArcvqError(
            f"{path}: training has not finished and there is no model yet: run the same arcvq train command to resume"
        )
    if path.is_dir():
        raise ArcvqError(f"{path}: holds no model: config.json and model/config.json are missing")
    if path.exists():
        raise ArcvqError(f"{path}: is a file; expected the folder of a run or of a saved model")
    name = str(source)
    if name in EMBEDDED:
        return Path(str(files("arcvq.tokenizers") / "embedded" / name))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download_from_hub(name)
    embedded = ", ".join(EMBEDDED)
    raise ArcvqError(
        f"{name}: no such run or model: expected a folder, an embedded model ({embedded}) or a Hub id owner/name"
    )


def find_tokenizer_folder(source: str | Path) -> Path:
    """The folder with the config.json of a tokenizer: as `find_model_folder`, and of a generator the one inside it."""
    folder = find_model_folder(source)
    inside = folder / TOKENIZER
    return inside if (inside / "config.json").is_file() else folder


def upload(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder to a Hub repository; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repository, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repository, folder_path=folder))


def _download_from_hub(name: str) -> Path:
    """Download a model from the Hugging Face Hub; returns its folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
    except (OSError, HFValidationError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ArcvqError(f"{name}: no such folder, and it could not be downloaded from the Hub ({reason})") from None
