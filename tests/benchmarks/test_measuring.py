"""The benchmarks: every contender is measured or named as missing, and all suites run on a CPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import Tokenizer, functional
from arcvq.data import write_png
from arcvq.tokenizers import Tile
from arcvq.tokenizers.saving import from_config, to_config
from benchmarks import blocks, contenders, measure, seams, sizes, steps
from benchmarks.__main__ import main
from benchmarks.contenders import MARGIN, SCALE, TOP_K, plain_arc_loss, plain_assign
from benchmarks.measure import Limits, measure_cost, measure_limits
from benchmarks.sizes import Size, least_work, size_rows

CPU = torch.device("cpu")
LIMITS = Limits(operations_per_second=1e9, bytes_per_second=1e6)
TINY = [Size(64, 16, 8), Size(64, 32, 8)]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.MATRIX_SIDE, "cpu", 64)
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**16)
    monkeypatch.setattr(measure, "measure_cost", lambda function, device, seconds: measure_cost(function, device, 0.0))


def run(path: Path, *words: str) -> dict[str, Any]:
    assert main([*words, "--device", "cpu", "--seconds", "0", "--out", str(path)]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


def test_plain_functions_equal_ours() -> None:
    latents, codes = torch.randn(200, 8), torch.randn(16, 8)
    assert torch.equal(plain_assign(latents, codes), functional.assign(latents, codes, "cosine"))
    expected = functional.arc_loss(latents, codes, SCALE, MARGIN, TOP_K)
    torch.testing.assert_close(plain_arc_loss(latents, codes), expected, rtol=1e-5, atol=1e-6)


def test_every_contender_has_time_or_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.SUITES, "small", TINY)
    rows = run(tmp_path / "small.json")["rows"]
    assert len(rows) == len(TINY) * len(contenders.all_contenders(CPU))
    for row in rows:
        assert ("milliseconds" in row) != ("missing" in row)
        if row["name"].startswith(("arcvq", "plain", "diffusers")):
            assert row["milliseconds"] > 0
            assert row["limit_fraction"] == pytest.approx(row["limit_milliseconds"] / row["milliseconds"])


def test_search_suite_measures_only_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.SUITES, "search", TINY[:1])
    rows = run(tmp_path / "search.json", "--suite", "search")["rows"]
    assert [row["name"] for row in rows] == ["arcvq chunked", "plain", "faiss IndexFlatIP"]
    assert {row["task"] for row in rows} == {"assign"}


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(contenders, "import_module", absent)
    rows = size_rows(TINY[:1], ["layer"], CPU, LIMITS, seconds=0.0)
    missing = [row for row in rows if not row["name"].startswith("arcvq")]
    assert len(missing) == 4
    for row in missing:
        assert row["name"].split()[0] in row["missing"]
        assert "milliseconds" not in row


def test_out_of_memory_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "plain_assign", lambda latents, codes: torch.empty(2**60))
    rows = {row["name"]: row for row in size_rows(TINY[:1], ["assign"], CPU, LIMITS, seconds=0.0)}
    assert rows["plain"]["missing"] == "out of memory"
    assert "milliseconds" not in rows["plain"]


def test_memory_is_peak_beyond_held() -> None:
    held = torch.zeros(2**20)

    def work() -> torch.Tensor:
        first = held + 1  # 4 MiB
        second = first * 2  # 4 MiB, while the first is held
        del first
        return second.sum()

    assert measure_cost(work, CPU, 0.0)["mebibytes"] == pytest.approx(8, abs=0.1)


def test_chunks_need_less_memory_than_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functional.chunks.BLOCK_ELEMENTS, "cpu", 2**14)
    rows = {row["name"]: row for row in size_rows([Size(1024, 256, 8)], ["samp"], CPU, LIMITS, seconds=0.0)}
    assert rows["arcvq chunked"]["mebibytes"] < rows["plain"]["mebibytes"] / 5


def test_limit_is_slower_of_computing_and_moving() -> None:
    assert LIMITS.milliseconds(operations=2e9, moved=1e6) == 2000
    assert LIMITS.milliseconds(operations=1e9, moved=3e6) == 3000
    assert least_work(Size(10, 20, 4), "samp")[0] == 4 * 2 * 10 * 20 * 4


def test_limits_follow_from_product_and_copy_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_cost", lambda function, device, seconds: {"fastest": 2.0})
    found = measure_limits(CPU)
    assert found.operations_per_second == pytest.approx(2 * 64**3 / 2e-3)
    assert found.bytes_per_second == pytest.approx(2 * 2**16 / 2e-3)


def test_tokens_suite_compares_precisions_with_fp32(tmp_path: Path) -> None:
    document = run(tmp_path / "tokens.json", "--suite", "tokens", "--limit", "4", "--batch-size", "2")
    assert (document["model"], document["images"], document["batch_size"]) == ("tiny", 4, 2)
    rows = {row["name"]: row for row in document["rows"]}
    assert len(rows) == 8
    assert rows["fp32 plain"]["agreement"] == 1
    assert 0.9 < rows["bf16 channels last"]["agreement"] <= 1
    assert rows["bf16 plain"]["psnr_difference"] == pytest.approx(
        rows["bf16 plain"]["psnr"] - rows["fp32 plain"]["psnr"]
    )
    assert rows["bf16 plain"]["encode_images_per_second"] > 0
    assert "NVIDIA" in rows["tf32 plain"]["missing"]


def test_steps_suite_measures_presets(tmp_path: Path) -> None:
    presets = ["sample/vae", "sample/hvq-vae"]
    words = ["--suite", "steps", "--presets", *presets, "--limit", "12", "--batch-size", "8"]
    rows = run(tmp_path / "steps.json", *words)["rows"]
    assert [row["preset"] for row in rows] == presets
    assert all(row["milliseconds"] > 0 and row["batch_size"] == 8 for row in rows)


def test_blocks_suite_compares_ours_with_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = blocks.FeatureMap(2, 32, 4)
    monkeypatch.setitem(blocks.NORM_SIZES, "cpu", [size])
    monkeypatch.setitem(blocks.ATTENTION_SIZES, "cpu", [size])
    document = run(tmp_path / "blocks.json", "--suite", "blocks")
    norms, attentions = ([row for row in document["rows"] if row["task"] == task] for task in ("norm", "attention"))
    expected = {f"{who} {how}, {way}" for who in ("arcvq", "torch") for how in blocks.LAYOUTS for way in blocks.WAYS}
    assert {row["name"] for row in norms} == expected
    assert [row["name"] for row in attentions] == [f"{who} {way}" for who in ("arcvq", "torch") for way in blocks.WAYS]
    bandwidth = document["limits"]["measured"]["bytes_per_second"]
    for row in norms:
        passes = {"forward": 3, "forward and backward": 8}[row["way"]]
        assert row["limit_milliseconds"] == pytest.approx(1e3 * passes * 2 * 2 * 32 * 4 * 4 / bandwidth)
        assert row["limit_fraction"] == pytest.approx(row["limit_milliseconds"] / row["milliseconds"])


def test_blocks_of_torch_equal_ours() -> None:
    x = torch.randn(2, 32, 4, 4)
    ours, torchs = blocks._norms(32, CPU).values()
    torch.testing.assert_close(torchs(x), ours(x))
    rows = torch.randn(3, 2, 5, 8)
    torch.testing.assert_close(blocks._torch_attention(*rows), functional.attend(*rows))


def test_loader_suite_measures_folder_and_shards_beside_steps(tmp_path: Path) -> None:
    for number in range(6):
        write_png(tmp_path / "photos" / f"{number}.png", torch.full((3, 20 + number, 24), number, dtype=torch.uint8))
    words = ["--data", f"folder:{tmp_path / 'photos'}", "--image-size", "16", "--threads", "1", "2"]
    words += ["--presets", "sample/vae", "--limit", "4", "--batch-size", "3"]
    rows = run(tmp_path / "loader.json", "--suite", "loader", *words)["rows"]
    assert [row["name"] for row in rows] == [
        "sample/vae, fp32 eager", "folder, 1 threads", "folder, 2 threads", "shards, 1 threads", "shards, 2 threads",
    ]  # fmt: skip
    assert all(row["batch_size"] == 3 for row in rows)
    assert all(row["images_per_second"] == pytest.approx(3e3 / row["milliseconds"]) for row in rows[1:])


def test_seams_suite_compares_tiles_with_whole_images(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for number, size in enumerate([(160, 99), (62, 60)]):
        pixels = torch.randint(256, (1, *size), dtype=torch.uint8, generator=generator)
        write_png(tmp_path / "photos" / f"{number}.png", pixels)
    words = ["--suite", "seams", "--data", f"folder:{tmp_path / 'photos'}", "--tiles", "64"]
    document = run(tmp_path / "seams.json", *words)
    assert (document["model"], document["data"], document["images"]) == ("tiny", "photos", 2)
    assert document["sides"] == [160, 96]
    whole, *rows = document["rows"]
    assert [(row["tile"], row["margin"]) for row in rows] == [(64, 0), (64, 4), (64, 8), (64, 16)]
    for row in rows:
        assert 0 <= row["elsewhere_error"] < row["near_error"]
        assert 0.5 < row["agreement"] <= 1
        assert row["mebibytes"] < whole["mebibytes"]
    assert rows[0]["near_error"] > 20 * rows[-1]["near_error"] > 0
    assert rows[0]["psnr_to_whole"] + 10 < rows[-1]["psnr_to_whole"]
    assert rows[-1]["psnr"] == pytest.approx(whole["psnr"], abs=1e-3)
    assert rows[0]["computed"] == pytest.approx(3 * 2 * 64**2 / (160 * 96))


def test_errors_are_attributed_to_the_pixels_near_borders() -> None:
    whole = torch.zeros(1, 1, 32, 112)
    tiled = whole.clone()
    tiled[..., 56] = 1  # the border of two tiles of 64 that overlap by 16
    tile = Tile(64, 8)
    found = seams.errors_by_place([whole], [tiled], tile, factor=4)
    assert found == {"near_error": pytest.approx(127.5 / 16), "elsewhere_error": 0}
    assert seams.errors_by_place([whole[..., :64]], [whole[..., :64]], tile, factor=4)["near_error"] == 0


def test_interruption_keeps_earlier_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> Iterator[dict[str, Any]]:
        yield {"task": "step", "name": "first", "milliseconds": 1.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "step_rows", stop)
    path = tmp_path / "steps.json"
    with pytest.raises(KeyboardInterrupt):
        run(path, "--suite", "steps")
    assert [row["name"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] == ["first"]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--out", "."], "folder"),
        (["--device", "gpux"], "gpux"),
        (["--suite", "steps", "--presets", "sample/unknown"], "sample/unknown"),
        (["--suite", "tokens", "--data", "smaple"], "smaple"),
        (["--suite", "loader", "--data", "sample"], "folder:PATH"),
        (["--suite", "seams", "--data", "sample"], "folder:PATH"),
    ],
)
def test_wrong_argument_is_one_line(words: list[str], fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", *words]) == 2
    error = capsys.readouterr().err
    assert fact in error
    assert error.count("\n") == 1


def test_tokens_suite_refuses_other_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = to_config(Tokenizer.from_pretrained("tiny"))
    from_config({**config, "channels": 3}).save_pretrained(tmp_path / "colour")
    assert main(["--suite", "tokens", "--device", "cpu", "--model", str(tmp_path / "colour"), "--limit", "2"]) == 2
    assert "channels" in capsys.readouterr().err


def test_sampling_suite_compares_ours_with_plain_loops(tmp_path: Path) -> None:
    words = ["--suite", "sampling", "--presets", "sample/gpt", "--batch-size", "2"]
    rows = run(tmp_path / "sampling.json", *words)["rows"]
    assert [row["name"] for row in rows] == ["sample/gpt, plain loop", "sample/gpt, eager", "sample/gpt, arcvq"]
    assert all(row["images_per_second"] == pytest.approx(2 / row["seconds"]) for row in rows)


def test_every_way_of_sampling_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from arcvq.priors import Noise
    from benchmarks import sampling

    for name, grid in sampling.PRIORS_OF["cpu"].items():
        prior = sampling.build(name, grid, torch.device("cpu"))
        found = [make()(Noise(0, range(2))).reshape(2, -1).float() for make, _ in sampling.ways(prior, 2).values()]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-3)


def test_vqgan_suite_compares_tokens_with_those_of_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import vqgan

    small = ["--data.image_size=16", "--data.batch_size=1", "--autoencoder.width=8", "--autoencoder.groups=8"]
    monkeypatch.setitem(vqgan.SETTINGS, "cpu", small)
    monkeypatch.setattr(vqgan, "PRECISIONS", ("fp32", "bf16"))
    rows = {row["name"]: row for row in vqgan._coding_rows(CPU, 0.0)}
    assert rows["arcvq fp32"]["agreement"] == 1
    assert rows["arcvq fp32"]["psnr_difference"] == 0
    assert 0 < abs(rows["arcvq bf16"]["psnr_difference"]) < 1
    assert rows["arcvq bf16"]["decode_images_per_second"] > 0
    assert "agreement" not in rows["diffusers VQModel fp32"]


def test_sampling_is_timed_in_the_precision_that_it_is_made_in() -> None:
    from benchmarks import sampling

    prior = sampling.build("sample/gpt", sampling.PRIORS_OF["cpu"]["sample/gpt"], torch.device("cpu"))
    make, _ = sampling.ways(prior, 2)["arcvq"]
    assert sampling.speed(make, "bf16", 2, torch.device("cpu"))["images_per_second"] > 0


def test_compression_suite_compares_ours_with_image_formats(tmp_path: Path) -> None:
    rows = torch.linspace(0, 255, 56).round().to(torch.uint8)
    write_png(tmp_path / "pictures" / "ramp.png", rows.expand(3, 30, 56))
    words = ["--suite", "compression", "--data", f"folder:{tmp_path / 'pictures'}"]
    document = run(tmp_path / "compression.json", *words)
    assert (document["model"], document["images"]) == ("tiny", 1)
    found = {row["name"]: row for row in document["rows"]}
    assert found["JPEG 80"]["psnr"] > found["JPEG 1"]["psnr"]
    assert found["JPEG 80"]["bits_per_pixel"] > found["JPEG 1"]["bits_per_pixel"]
    portable, prior = found["arcvq portable"], found["arcvq prior"]
    assert portable["psnr"] == prior["psnr"]  # the same tokens
    assert 0 < prior["cross_entropy"] <= prior["payload"] < prior["bits_per_pixel"]
