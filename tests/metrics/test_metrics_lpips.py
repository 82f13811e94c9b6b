from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchmetrics.functional.image.lpips import _LPIPS

from arcvq.errors import ArcvqError
from arcvq.metrics import MissingWeights, lpips_distance, lpips_network
from arcvq.metrics import weights as weights_module
from arcvq.metrics.lpips import TRUNKS, LpipsName, untrained_network


@pytest.fixture(scope="module")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both trunks with random weights, as files."""
    folder = tmp_path_factory.mktemp("weights")
    generator = torch.Generator().manual_seed(0)
    for name, trunk in TRUNKS.items():
        net = untrained_network(name).net  # type: ignore[arg-type]
        state = {key: 0.05 * torch.randn(value.shape, generator=generator) for key, value in net.state_dict().items()}
        save_file(state, folder / trunk.file)
    return folder


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ARCVQ_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hub" / "checkpoints"


@pytest.fixture(scope="module")
def vgg(weights_folder: Path) -> nn.Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCVQ_WEIGHTS", str(weights_folder))
        return lpips_network("vgg")


def test_distance_is_zero_only_for_equal_images(vgg: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3, 17, 16, generator=torch.Generator().manual_seed(0))
    assert lpips_distance(x, x, vgg).tolist() == [0.0] * 2
    distance = lpips_distance(x, x.flip(3), vgg)
    assert distance.shape == (2,)
    assert (distance > 0).all()
    monkeypatch.setattr("arcvq.metrics.lpips.PIXELS_AT_ONCE", 16 * 17)
    assert torch.allclose(lpips_distance(x, x.flip(3), vgg), distance, atol=1e-6)

    grey = x[:, :1]
    assert torch.allclose(
        lpips_distance(grey, grey.flip(3), vgg),
        lpips_distance(grey.expand(-1, 3, -1, -1), grey.expand(-1, 3, -1, -1).flip(3), vgg),
    )


@pytest.mark.parametrize("name", ["vgg", "alex"])
def test_distance_equals_torchmetrics(name: LpipsName, weights_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(weights_folder))
    network = lpips_network(name)
    theirs = _LPIPS(net=name, pnet_rand=True)
    # Their trunk is cut into slices that keep torchvision's numbers: slice2.5.weight is features.5.weight.
    state = network.get_submodule("net").state_dict()
    theirs.net.load_state_dict({key: state[key.split(".", 1)[1]] for key in theirs.net.state_dict()})
    x, y = torch.rand(2, 3, 3, 40, 33, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([theirs(a[None], b[None], normalize=True).flatten() for a, b in zip(x, y)])
    assert expected.min() > 1e-3
    assert torch.allclose(lpips_distance(x, y, network), expected, rtol=0, atol=1e-6)


def test_network_has_weights_of_file_and_is_frozen(weights_folder: Path, vgg: nn.Module) -> None:
    from safetensors.torch import load_file

    state = load_file(weights_folder / "vgg16-features.safetensors")
    assert torch.equal(vgg.get_submodule("net").state_dict()["28.weight"], state["28.weight"])
    # The network has all feature tensors of torchvision.
    assert state.keys() == torchvision.models.vgg16(init_weights=False).features.state_dict().keys()
    assert not vgg.training
    assert not any(parameter.requires_grad for parameter in vgg.parameters())


def test_loading_keeps_random_state_and_small_images_are_refused(
    weights_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(weights_folder))
    before = torch.get_rng_state()
    network = lpips_network("alex")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ArcvqError, match=r"31 pixels .* 30x40"):
        lpips_distance(torch.zeros(1, 3, 40, 30), torch.zeros(1, 3, 40, 30), network)
    assert lpips_distance(torch.zeros(1, 3, 31, 31), torch.zeros(1, 3, 31, 31), network).tolist() == [0.0]


@pytest.mark.parametrize(("name", "model"), [("vgg", "vgg16"), ("alex", "alexnet")])
def test_missing_weights_error_names_command(no_cache: Path, name: str, model: str) -> None:
    with pytest.raises(MissingWeights) as caught:
        lpips_network(name)  # type: ignore[arg-type]
    line = str(caught.value)
    assert f"python -c \"import torchvision; torchvision.models.{model}(weights='DEFAULT')\"" in line
    assert f"{TRUNKS[name].file} into the folder that ARCVQ_WEIGHTS points to" in line
    assert "\n" not in line


def test_torchvision_cache_is_used(no_cache: Path, weights_folder: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(weights_folder / "alexnet-features.safetensors")
    no_cache.mkdir(parents=True)
    cached = no_cache / "alexnet-owt-7be5be79.pth"
    assert torchvision.models.AlexNet_Weights.DEFAULT.url.endswith(cached.name)
    assert torchvision.models.VGG16_Weights.DEFAULT.url == TRUNKS["vgg"].url
    torch.save(
        {f"features.{key}": value for key, value in state.items()} | {"classifier.1.bias": torch.ones(1)}, cached
    )
    network = lpips_network("alex")
    assert torch.equal(network.get_submodule("net").state_dict()["0.bias"], state["0.bias"])
    cached.write_bytes(b"half a file")
    with pytest.raises(ArcvqError, match=r"cannot read .*alexnet-owt-7be5be79\.pth"):
        lpips_network("alex")


def test_weights_are_downloaded_only_on_request(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(weights_module, "load_state_dict_from_url", unreachable)
    with pytest.raises(MissingWeights, match="not found"):
        lpips_network("vgg")
    with pytest.raises(MissingWeights, match="no route to host"):
        lpips_network("vgg", download=True)


def test_wrong_weights_error_names_file(no_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    file = tmp_path / "alexnet-features.safetensors"
    save_file({"0.weight": torch.zeros(2)}, file)
    with pytest.raises(ArcvqError, match=r"alexnet-features\.safetensors does not fit"):
        lpips_network("alex")
    file.write_bytes(b"not safetensors")
    with pytest.raises(ArcvqError, match=r"cannot read .*alexnet-features\.safetensors"):
        lpips_network("alex")
    with pytest.raises(ArcvqError, match=r"'squeeze'.*vgg, alex"):
        lpips_network("squeeze")  # type: ignore[arg-type]
