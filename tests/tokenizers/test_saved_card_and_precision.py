"""What the card of a saved tokenizer says of its data, and weights in half precision."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arcvq import ArcVQ, ArcvqError, Tokenizer
from arcvq.data import to_unit
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.tokenizers.card import model_card


def make_tokenizer() -> Tokenizer:
    torch.manual_seed(3)
    network = SmallAutoencoder(1, SmallConfig(width=16, residual_width=8, latent_dim=8))
    return Tokenizer(network, ArcVQ(8, 32), image_size=(28, 28), system="arcvq-vae").eval()


@pytest.mark.parametrize(
    ("data", "shown", "terms"),
    [
        ("folder:/home/someone/secret/faces", "folder:faces", None),
        ("shards:/home/someone/secret/tars/", "shards:tars", None),
        ("cifar10", "cifar10", "see the data set's own terms"),
        ("fashion-mnist", "fashion-mnist", "Fashion-MNIST, MIT licence"),
    ],
)
def test_card_names_data_without_its_path_and_its_terms(data: str, shown: str, terms: str | None) -> None:
    card = model_card(
        make_tokenizer(), {"data": data, "selected": f"lowest mse on the test images of {data}, at step 3"}
    )
    assert f"| data | {shown} |\n" in card
    assert f"| selected | lowest mse on the test images of {shown}, at step 3 |" in card
    assert "secret" not in card
    assert card.endswith(f"| data terms | {terms} |\n") == (terms is not None)
    assert ("data terms" in card) == (terms is not None)
    given = model_card(make_tokenizer(), {"data": data, "data_terms": "CC BY 4.0"})
    assert given.endswith("| data terms | CC BY 4.0 |\n")
    assert "data_terms" not in given


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_take_half_the_bytes(
    dtype: torch.dtype, tmp_path: Path, sample_pixels: Tensor
) -> None:
    tokenizer = make_tokenizer()
    whole = tokenizer.save_pretrained(tmp_path / "whole")
    half = tokenizer.save_pretrained(tmp_path / "half", dtype=dtype)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (half, whole)]
    assert sizes[0] < 0.6 * sizes[1]
    assert (half / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    name = str(dtype).removeprefix("torch.")
    assert f"stored in half precision ({name}), loaded as float32" in (half / "README.md").read_text()
    loaded = Tokenizer.from_pretrained(half)
    stored = load_file(half / "model.safetensors")
    for key, tensor in tokenizer.state_dict().items():
        assert stored[key].dtype == (dtype if tensor.is_floating_point() else tensor.dtype)
        assert loaded.state_dict()[key].dtype == tensor.dtype
        assert torch.equal(loaded.state_dict()[key], stored[key].to(tensor.dtype))
        assert torch.equal(stored[key], tensor.to(stored[key].dtype))
    images = to_unit(sample_pixels)
    assert (loaded.encode(images) == tokenizer.encode(images)).float().mean() > 0.9
    assert loaded.reconstruct(images).dtype == torch.float32


def test_weights_beyond_half_precision_are_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with torch.no_grad():
        tokenizer.quantizer.codebook[3, 1] = 70_000
    with pytest.raises(ArcvqError, match=r"codebook has values above 65,504, .* torch\.float16 holds: store bfloat16"):
        tokenizer.save_pretrained(tmp_path / "model", dtype=torch.float16)
    with pytest.raises(ArcvqError, match=r"dtype is torch\.int8; .* torch\.float16 or torch\.bfloat16"):
        tokenizer.save_pretrained(tmp_path / "model", dtype=torch.int8)
    assert not list(tmp_path.iterdir())
    tokenizer.save_pretrained(tmp_path / "model", dtype=torch.bfloat16)
