"""What the tables say, in a few lines."""

from collections.abc import Callable
from pathlib import Path

from page_blocks import block
from study_results import BEST_AT_1E_3, try_recipes, tune

from arcvq.tables import results_page

Add = Callable[..., None]


def test_the_page_in_short(folder: Path, add: Add) -> None:
    said = block(results_page(folder, None), "summary")
    assert said.startswith("- Not whole yet: table1 (0 of 30 runs), table4 (0 of 14 runs), ")
    add("vq-vae-bf16", exact={"psnr": 24.0, "usage": 0.5}, paper={"psnr": 24.0, "rfid": 30.0}, precision="bf16")
    for seed, psnr in ((1, 24.5), (2, 24.7)):
        measured = {"psnr": psnr, "rfid": 28.0, "usage": 0.75}
        add("arcvq-vae-bf16", seed, exact=measured, paper=measured, precision="bf16")
    said = block(results_page(folder, None), "summary")
    assert "- cifar10, published settings in bf16, PSNR (`exact`): ArcVQ-VAE 24.60 ± 0.14, VQ-VAE 24.00." in said
    assert "- cifar10, published settings in bf16, rFID (`paper`): ArcVQ-VAE 28.00, VQ-VAE 30.00." in said
    assert "- cifar10, published settings in bf16, usage (`exact`): ArcVQ-VAE 75.0%, VQ-VAE 50.0%." in said
    assert "- cifar10, ArcVQ-VAE over VQ-VAE in PSNR (`paper`): +0.60 dB, in print +1.46." in said
    assert "table1 (3 of 30 runs)" in said
    add("cvq-vae-bf16", diverged="at step 9", precision="bf16")  # it is not run again
    assert "table1 (4 of 30 runs)" in block(results_page(folder, None), "summary")
    assert "mnist, " not in said
    assert "recipe, as long" not in said
    tune(add, "vq-vae", *BEST_AT_1E_3)
    tune(add, "fsq", *[25.0] * 8)
    try_recipes(add, cvq=24.5, neither=24.9)  # what has no SAMP is no recipe
    said = block(results_page(folder, None), "summary")
    assert "tried, PSNR on held-out images: fsq 25.00, vq-vae 24.00." in said
    assert "- cifar10, the best candidate for a recipe, as long: `scaffold-cvq` 24.50." in said
    assert "epochs, PSNR on the test set" not in said
    for epochs, ours, theirs in ((25, 22.0, 21.5), (50, 22.5, 22.5), (100, 23.0, 23.1)):
        add(f"scaffold-cvq-{epochs}epochs", epochs=epochs, exact={"psnr": ours, "usage": 1.0})
        add(f"vq-vae-lr1e-3-cosine-{epochs}epochs", epochs=epochs, exact={"psnr": theirs, "usage": 1.0})
    said = block(results_page(folder, None), "summary")
    rival = "best rival (of 1 tried of 4) `vq-vae-lr1e-3-cosine`"
    for line in (
        f"- cifar10, 25 epochs, PSNR on the test set: `scaffold-cvq` 22.00, {rival} 21.50: ahead by 0.50.",
        f"- cifar10, 50 epochs, PSNR on the test set: `scaffold-cvq` 22.50, {rival} 22.50: level.",
        f"- cifar10, 100 epochs, PSNR on the test set: `scaffold-cvq` 23.00, {rival} 23.10: behind by 0.10.",
    ):
        assert line in said
    assert "250 epochs" not in said  # not measured
