"""The generator: classes, completion, extension, and what is refused in a saved one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_prior import GRID, small_generator, small_prior
from safetensors.torch import load_file, save_file

from arcvq import ArcvqError, Generator, Tokenizer
from arcvq.data import load_images, read_image, to_uint8, to_unit, write_png
from arcvq.nets import SmallConfig
from arcvq.priors import Grid, Noise, SamplingOptions, make_grid
from arcvq.priors.files import complete_file, image_grid, sample_files
from arcvq.priors.generator import fill_hole
from arcvq.priors.saving import generator_fingerprint
from arcvq.quantizers import VQConfig
from arcvq.tokenizers import build_tokenizer
from arcvq.tokenizers.saving import model_fingerprint


@pytest.fixture(scope="module")
def generator() -> Generator:
    return small_generator("gpt")


@pytest.fixture
def saved(generator: Generator, tmp_path: Path) -> Path:
    return generator.save_pretrained(tmp_path / "model", notes={"data": "noise"})


def some_images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, 1, 12, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_classes_are_taken_in_turn_by_number_or_name(generator: Generator) -> None:
    every = generator(6, seed=5, chunk=3)
    assert torch.equal(generator(6, seed=5, chunk=3, classes=["cat", 1, "2"]), every)
    dogs = generator(6, seed=5, chunk=3, classes="dog")
    assert torch.equal(dogs[[1, 4]], every[[1, 4]])
    assert not torch.equal(dogs[0], every[0])


def test_batches_are_the_images_in_parts(generator: Generator) -> None:
    parts = list(generator.batches(5, seed=1, chunk=2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat(parts), generator(5, seed=1, chunk=2))


def test_mode_and_gradients_are_as_before(generator: Generator) -> None:
    generator.train()
    images = generator(1, chunk=1)
    assert generator.training
    assert generator.prior.training
    assert not images.requires_grad
    generator.eval()
    assert torch.equal(generator(1, chunk=1), images)


def test_progress_counts_the_steps_of_all_chunks(generator: Generator) -> None:
    calls: list[tuple[int, int]] = []
    generator(3, chunk=2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(step, 24) for step in range(1, 25)]


def test_completion_keeps_visible_pixels_and_tokens(generator: Generator) -> None:
    images = some_images()
    mask = torch.zeros(2, 1, 12, 16, dtype=torch.bool)
    mask[:, :, 9:, 5:7] = True
    made = generator.complete(images, mask, seed=1)
    assert torch.equal(made[~mask], images[~mask])
    decoded = generator.complete(images, mask, seed=1, keep_pixels=False)
    assert torch.equal(decoded[mask], made[mask])
    none = generator.complete(images, torch.zeros_like(mask), keep_pixels=False)
    assert torch.equal(none, generator.tokenizer.decode(generator.tokenizer.encode(images)))
    tokens = generator.tokenizer.encode(fill_hole(images, mask))
    # Only the second token of the last row is touched.
    expected = tokens.clone()
    options = {"labels": torch.full((2,), generator.prior.null), "batch": 2}
    expected[:, 2, 1] = -1
    drawn = generator.prior.sample(noise=Noise(1, range(2)), options=SamplingOptions(), known=expected, **options)
    assert torch.equal(decoded, generator.tokenizer.decode(drawn))
    assert (drawn != tokens).flatten(1).sum(1).max() <= 1


def test_what_is_under_the_mask_changes_nothing() -> None:
    generator = Generator.from_pretrained("tiny")
    images = to_unit(load_images("sample", split="test", limit=2).gather(torch.arange(2)))
    mask = torch.zeros(2, 1, 28, 28, dtype=torch.bool)
    mask[0, :, 8:20, 8:20] = mask[1, :, 16:] = True
    other = torch.where(mask, -images.sign(), images)
    # The tokens beside the mask know what is under it.
    beside = ~torch.nn.functional.max_pool2d(mask.float(), 4).bool()[:, 0]
    assert (generator.tokenizer.encode(images) != generator.tokenizer.encode(other))[beside].any()
    other[0, 0, 10, 10] = torch.nan
    for keep in (True, False):
        expected = generator.complete(images, mask, seed=2, keep_pixels=keep)
        made = generator.complete(other, mask, seed=2, keep_pixels=keep)
        assert torch.equal(made[mask], expected[mask])
        assert torch.equal(made, expected)


def test_hole_is_filled_with_the_mean_of_what_is_visible() -> None:
    images = torch.tensor([[[[1.0, 2.0], [6.0, 9.0]], [[0.0, 0.0], [3.0, 9.0]]]])
    mask = torch.tensor([[[[False, False], [False, True]]]])
    assert fill_hole(images, mask)[0, :, 1, 1].tolist() == [3.0, 1.0]
    assert torch.equal(fill_hole(images, mask)[..., 0, :], images[..., 0, :])
    assert fill_hole(images, torch.ones_like(mask)).eq(0).all()


@pytest.mark.parametrize("name", ["gpt", "maskgit"])
def test_continued_or_completed_image_does_not_depend_on_its_batch(name: str) -> None:
    generator, images = small_generator(name), some_images(3)
    mask = torch.zeros(3, 1, 12, 16, dtype=torch.bool)
    mask[:, :, 6:] = True
    about: dict[str, Any] = {"seed": 1, "classes": ["cat", "dog"]}
    extended, completed = generator.extend(images, 3, **about), generator.complete(images, mask, **about)
    for index in range(3):
        own = slice(index, index + 1)
        alone = generator.extend(images[own], 3, first=index, **about)
        torch.testing.assert_close(alone, extended[own], rtol=0, atol=1e-5)
        alone = generator.complete(images[own], mask[own], first=index, **about)
        torch.testing.assert_close(alone, completed[own], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt", "maskgit", "rq-transformer depth 3"])
def test_longer_extension_begins_with_the_shorter_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = small_generator(name)
    monkeypatch.setattr(generator, "decode", lambda tokens: tokens)
    long = generator.extend(some_images(), 9, seed=1)
    assert long.shape[:3] == (2, 12, 4)
    for rows in (1, 4):
        assert torch.equal(generator.extend(some_images(), rows, seed=1), long[:, : 3 + rows])


def test_all_windows_of_an_extension_have_one_sampler(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = generator.prior.make_sampler
    monkeypatch.setattr(generator.prior, "make_sampler", lambda *a: (made.append(1), original(*a))[1])
    calls: list[tuple[int, int]] = []
    generator.extend(some_images(), 3, progress=lambda done, total: calls.append((done, total)))
    assert len(made) == 1
    assert calls == [(step, 36) for step in range(1, 37)]


def test_class_is_found_whatever_its_case(generator: Generator) -> None:
    assert generator.class_numbers(["CAT", "Red Fox", "1"]) == [0, 2, 1]
    names = Generator(generator.prior, generator.tokenizer, class_names=["Leonberger", "pug", "Pug"])
    assert names.class_numbers(["leonberger", "pug", "Pug"]) == [0, 1, 2]
    with pytest.raises(ArcvqError, match="unknown class 'PUG'"):
        names.class_numbers("PUG")


@pytest.mark.parametrize("classes", [np.int64(1), [np.int64(1)], np.array([1]), torch.tensor([1])])
def test_class_may_be_any_whole_number(generator: Generator, classes: Any) -> None:
    found = generator.class_numbers(classes)
    assert found == [1]
    assert type(found[0]) is int


def test_guidance_that_was_not_learned_is_refused() -> None:
    generator = small_generator("gpt")
    generator.prior.config = replace(generator.prior.config, label_dropout=0.0)
    with pytest.raises(ArcvqError, match="label_dropout 0"):
        generator(1, guidance=2.0)
    with pytest.raises(ArcvqError, match="say the images' class"):
        generator.extend(some_images(), 1)
    assert generator.extend(some_images(), 1, classes="cat").shape == (2, 1, 16, 16)
    assert generator(1, guidance=1.0, chunk=1).shape == (1, 1, 12, 16)
    without = Generator(small_prior("gpt", replace(GRID, classes=0)), generator.tokenizer)
    with pytest.raises(ArcvqError, match="guidance needs classes"):
        without(1, guidance=0.0)
    assert without.extend(some_images(), 1).shape == (2, 1, 16, 16)


def test_extension_continues_from_the_lower_rows(generator: Generator) -> None:
    images = some_images()
    longer = generator.extend(images, 5, seed=1)
    assert longer.shape == (2, 1, 12 + 5 * 4, 16)
    # Windows of 3 rows move by one: the first new row is drawn given the last two.
    tokens = generator.tokenizer.encode(images)
    window = torch.cat([tokens[:, 1:], torch.full((2, 1, 4), -1)], dim=1)
    labels = torch.full((2,), generator.prior.null)
    drawn = generator.prior.sample(labels, Noise(1, range(2)), SamplingOptions(), batch=2, known=window)
    first = generator.tokenizer.decode(torch.cat([tokens, drawn[:, -1:]], dim=1))
    assert torch.equal(generator.extend(images, 1, seed=1), first)


def test_wrong_arguments_are_named(generator: Generator) -> None:
    for call, message in [
        (lambda: generator(0), "at least 1"),
        (lambda: generator(1, classes="dgo"), "did you mean dog"),
        (lambda: generator(1, classes=3), "classes 0 to 2"),
        (lambda: generator(1, classes=[]), "at least one class"),
        (lambda: generator(1, classes=[0.5]), "a name or a whole number"),
        (lambda: generator(1, temprature=1.0), "did you mean temperature"),
        (lambda: generator.extend(some_images(), 0), "at least 1 row"),
        (lambda: generator.complete(some_images(), torch.zeros(2, 12, 16)), "expected a mask"),
        (lambda: generator.complete(torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 16)), "images of 12×16"),
    ]:
        with pytest.raises(ArcvqError, match=message):
            call()


def test_prior_of_another_tokenizer_is_refused() -> None:
    prior = small_prior("gpt", Grid(height=3, width=4, codebook_size=12, latent_dim=8, classes=3))
    with pytest.raises(ArcvqError, match="the tokenizer it was trained on"):
        Generator(prior, small_generator("gpt").tokenizer)


def test_grid_is_that_of_the_tokens() -> None:
    tokenizer = build_tokenizer(3, SmallConfig(width=16, latent_dim=8), VQConfig(codebook_size=9, heads=2))
    expected = Grid(height=4, width=8, codebook_size=9, depth=2, latent_dim=8, classes=5)
    assert make_grid(tokenizer, (16, 32), 5) == expected
    assert tokenizer.encode(torch.zeros(1, 3, 16, 32)).shape[1:] == expected.token_shape


def test_fingerprint_covers_weights_and_configurations_of_both() -> None:
    def changed(change: Callable[[Generator], object]) -> int:
        other = small_generator("maskgit")
        change(other)
        return generator_fingerprint(other)

    found = {
        changed(lambda _: None),
        changed(lambda other: setattr(other.prior.config, "steps", 6)),
        changed(lambda other: setattr(other.prior.config, "heads", 4)),
        changed(lambda other: setattr(other.prior, "grid", replace(other.prior.grid, height=4, width=3))),
        changed(lambda other: other.prior.head.bias.data.add_(1)),
        changed(lambda other: setattr(other.tokenizer.quantizer.config, "metric", "euclidean")),
        changed(lambda other: setattr(other.tokenizer.autoencoder.config, "skip_activated", False)),
        changed(lambda other: other.tokenizer.quantizer.codebook.data.add_(1)),
    }
    assert len(found) == 8
    assert changed(lambda other: setattr(other, "system", "renamed")) in found


def test_fingerprint_of_a_tokenizer_is_that_of_the_saved_one(generator: Generator, saved: Path) -> None:
    written = json.loads((saved / "config.json").read_text())["tokenizer"]
    assert written == model_fingerprint(generator.tokenizer)
    assert written == model_fingerprint(Tokenizer.from_pretrained(saved / "tokenizer"))


def test_tokenizer_with_another_configuration_is_refused(saved: Path) -> None:
    config = json.loads((saved / "tokenizer" / "config.json").read_text())
    config["quantizer"]["metric"] = "euclidean" if config["quantizer"]["metric"] == "cosine" else "cosine"
    (saved / "tokenizer" / "config.json").write_text(json.dumps(config))
    assert "another tokenizer" in error_of(saved)


def error_of(folder: Path) -> str:
    with pytest.raises(ArcvqError) as raised:
        Generator.from_pretrained(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_card_names_data_without_its_path(tmp_path: Path) -> None:
    notes = {"data": "folder:/home/someone/faces", "data_terms": "CC BY 4.0"}
    card = (small_generator("gpt").save_pretrained(tmp_path / "model", notes=notes) / "README.md").read_text()
    assert "| data | folder:faces |" in card
    assert "| data terms | CC BY 4.0 |" in card
    assert "someone" not in card


def test_card_says_what_the_generator_is(saved: Path) -> None:
    card = (saved / "README.md").read_text()
    for row in ("| tokens per image | 12 |", "| codes | 11 |", "| classes | 3 |", "| data | noise |"):
        assert row in card
    assert sorted(path.name for path in saved.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer",
    ]


def test_tokenizer_is_loaded_from_a_generator_too(saved: Path, generator: Generator) -> None:
    tokenizer, images = Tokenizer.from_pretrained(saved), some_images()
    assert torch.equal(tokenizer.encode(images), generator.tokenizer.encode(images))


def test_folder_without_prior_is_refused(saved: Path) -> None:
    assert "holds no prior" in error_of(saved / "tokenizer")


def test_exchanged_tokenizer_is_refused(saved: Path) -> None:
    file = saved / "tokenizer" / "model.safetensors"
    tensors = load_file(file)
    tensors["quantizer.codebook"] = tensors["quantizer.codebook"] + 0.5
    save_file(tensors, file)
    assert "another tokenizer" in error_of(saved)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["format"], "arcvq-generator-9", "arcvq-generator-1"),
        (["prior", "width"], 32, "does not match its config.json"),
        (["prior", "kind"], "gtp", "did you mean gpt"),
        (["prior", "layers"], 10**6, "prior.layers"),
        (["grid", "height"], 10**9, "grid.height"),
        (["grid", "codebook_size"], 12, "does not match its config.json"),
        (["class_names"], ["one"], "expected 3 names"),
        (["os"], "system", "unknown key 'os'"),
    ],
)
def test_wrong_configuration_is_named(saved: Path, keys: list[str], value: object, message: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    inside = config
    for key in keys[:-1]:
        inside = inside[key]
    inside[keys[-1]] = value
    (saved / "config.json").write_text(json.dumps(config))
    assert message in error_of(saved)


def test_damaged_weights_are_named(saved: Path) -> None:
    file = saved / "model.safetensors"
    tensors = load_file(file)
    tensors["head.bias"][0] = torch.nan
    save_file(tensors, file)
    assert "head.bias has NaN" in error_of(saved)
    file.write_bytes(file.read_bytes()[:200])
    assert "truncated" in error_of(saved)


def test_saving_over_other_files_is_refused(generator: Generator, saved: Path) -> None:
    generator.save_pretrained(saved)  # over an older save
    (saved / "notes.txt").touch()
    with pytest.raises(ArcvqError, match=r"notes\.txt"):
        generator.save_pretrained(saved)


def test_push_to_hub_uploads_a_loadable_generator(
    generator: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Api:
        def create_repo(self, repository: str, private: bool, exist_ok: bool) -> None:
            assert (repository, private) == ("someone/generator", False)

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            shutil.copytree(folder_path, tmp_path / "hub")
            return repo_id

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert generator.push_to_hub("someone/generator") == "someone/generator"
    assert torch.equal(Generator.from_pretrained(tmp_path / "hub")(1, chunk=1), generator(1, chunk=1))


def test_sampled_files_are_the_images_with_their_classes(generator: Generator, tmp_path: Path) -> None:
    written = sample_files(generator, tmp_path / "out", 4, seed=2, chunk=4)
    assert [path.name for path in written.files] == [
        "000000-cat.png",
        "000001-dog.png",
        "000002-red-fox.png",
        "000003-cat.png",
    ]
    pixels = torch.stack([read_image(path, 1) for path in written.files])
    assert torch.equal(pixels, to_uint8(generator(4, seed=2, chunk=4)))
    assert torch.equal(read_image(written.grid, 1), image_grid(pixels))
    about = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert (about["seed"], about["model"]) == (2, f"{generator_fingerprint(generator):016x}")
    # Every option of the sampling, those that were not given with their values.
    assert about | {"chunk": 4, "precision": "fp32", "compiled": False, "temperature": 1.0, "guidance": 1.0} == about
    assert about.keys() >= set(generator.prior.sampling_options)


@pytest.mark.parametrize("held", ["000005-cat.png", "sampling.json", "notes.txt"])
def test_images_are_not_sampled_into_a_folder_with_files(generator: Generator, tmp_path: Path, held: str) -> None:
    (tmp_path / held).touch()
    with pytest.raises(ArcvqError, match=f"not empty \\({held}\\): choose another --out"):
        sample_files(generator, tmp_path, 1, chunk=1)
    assert [path.name for path in tmp_path.iterdir()] == [held]


@pytest.mark.parametrize("original", ["photo", "mask"])
def test_completion_does_not_overwrite_what_it_reads(generator: Generator, tmp_path: Path, original: str) -> None:
    photo, mask = tmp_path / "photo.png", tmp_path / "masks" / "photo.png"
    for file in (photo, mask):
        write_png(file, torch.full((1, 12, 16), 200, dtype=torch.uint8))
    before = [file.read_bytes() for file in (photo, mask)]
    with pytest.raises(ArcvqError, match="would overwrite the input"):
        complete_file(generator, photo, mask, None, tmp_path if original == "photo" else tmp_path / "masks")
    assert [file.read_bytes() for file in (photo, mask)] == before


def test_grid_has_a_white_gap_between_images() -> None:
    grid = image_grid(torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 4, 5))
    assert grid.shape == (3, 10, 12)
    assert grid[0, 0].tolist() == [0] * 5 + [255] * 2 + [1] * 5
    assert grid[0, 9].tolist() == [2] * 5 + [255] * 7


def test_files_are_completed_and_continued(generator: Generator, tmp_path: Path) -> None:
    write_png(tmp_path / "photo.png", torch.randint(256, (3, 30, 40), dtype=torch.uint8))
    mask = torch.zeros(1, 12, 16, dtype=torch.uint8)
    mask[:, :4, :4] = 255
    write_png(tmp_path / "mask.png", mask)
    photo, out = tmp_path / "photo.png", tmp_path / "out"
    path = complete_file(generator, photo, tmp_path / "mask.png", None, out)
    assert path == out / "photo.png"
    original, completed = read_image(photo, 1, (12, 16)), read_image(path, 1)
    assert torch.equal(original[mask == 0], completed[mask == 0])
    assert read_image(complete_file(generator, photo, None, 2, out), 1).shape == (1, 20, 16)
    with pytest.raises(ArcvqError, match="--mask"):
        complete_file(generator, photo, None, None, out)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_changes_few_tokens(generator: Generator, precision: Any) -> None:
    images, half = generator(8, chunk=8), generator(8, chunk=8, precision=precision)
    assert half.dtype == torch.float32
    assert half.isfinite().all()
    assert ((images - half).abs() < 0.1).float().mean() > 0.5


def test_compiled_prior_makes_the_same_images(generator: Generator) -> None:
    compiled = small_generator("gpt")
    compiled.prior.compile_step()
    torch.testing.assert_close(compiled(2, chunk=2), generator(2, chunk=2), rtol=0, atol=1e-4)


def test_unknown_precision_is_refused(generator: Generator) -> None:
    with pytest.raises(ArcvqError, match="fp8"):
        generator(1, precision="fp8")  # type: ignore[arg-type]
