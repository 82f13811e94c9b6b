"""RESULTS.md says what the result files say, and keeps what people wrote."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from page_blocks import block, rows

from arcvq import ArcvqError
from arcvq.metrics import PAPER
from arcvq.tables import EXPERIMENTS, TABLES, Cell, Table, read_printed, read_results, results_page
from arcvq.tables.paper import PrintedTable

ROOT = Path(__file__).resolve().parents[2]
Add = Callable[..., None]


def test_one_seed_has_no_spread_and_three_have_one(folder: Path, add: Add) -> None:
    add("vq-vae", 1, paper={"psnr": 24.0, "usage": 0.5})
    for seed, psnr in ((1, 24.0), (2, 25.0), (3, 26.0)):
        add("arcvq-vae", seed, paper={"psnr": psnr, "ssim": 0.9}, exact={"psnr": psnr + 1})
    page = results_page(folder, None)
    (one,) = rows(page, "table1", "VQ-VAE", "ours, paper")
    assert one[2:5] == ["1", "not measured", "24.00"]
    assert one[8] == "50.0%"
    (three,) = rows(page, "table1", "ArcVQ-VAE", "ours, paper")
    assert three[2:5] == ["3", "not measured", "25.00 ± 1.00"]
    assert three[-3:-1] == ["2026-01-01 to 2026-01-03", "A GPU"]
    assert re.fullmatch(r"`[0-9a-f]{8}`", three[-1])  # one for all seeds
    assert rows(page, "table1", "ArcVQ-VAE", "ours, exact")[0][4] == "26.00 ± 1.00"


def test_what_is_missing_is_said(folder: Path, add: Add) -> None:
    add("vq-vae", 1, exact={"psnr": 24.0})
    add("vq-vae", 2, exact={"psnr": 25.0, "rfid": 30.0}, missing={"lpips": "no network: run once with one"})
    page = results_page(folder, None)
    assert rows(page, "table1", "VQ-VAE", "ours, paper")[0][2] == "not measured"
    (ours,) = rows(page, "table1", "VQ-VAE", "ours, exact")
    assert ours[7] == "30.00 (1 of 2 seeds)"
    assert "- vq-vae, LPIPS: no network\n" in block(page, "table1") + "\n"
    assert rows(page, "table1", "ArcVQ-VAE", "ours")[0][2] == "not measured"
    assert "Not measured: vq-vae-ema, " in block(page, "beyond")
    assert rows(page, "table2", "VQGAN")[0] == ["VQGAN", "16²", "1,024", "44.0%", "7.94", "not measured"]
    assert block(page, "table7").startswith("Nothing to measure")


def test_what_cannot_be_measured_is_told_from_what_is_not(folder: Path, add: Add) -> None:
    why = {"usage": "not applicable: the model gave no tokens", "lpips": "no network: run once with one"}
    add("vae", exact={"psnr": 24.0}, missing=why)
    page = results_page(folder, None)
    found = dict(zip(rows(page, "table9", "system")[0], rows(page, "table9", "VAE", "ours, exact")[0]))
    assert [found[heading] for heading in ("usage", "LPIPS", "rFID")] == ["not applicable"] + ["not measured"] * 2
    assert "- vae, LPIPS: no network" in block(page, "table9")
    assert "- vae, usage" not in block(page, "table9")


def test_numbers_of_an_earlier_revision_of_a_protocol_are_marked(folder: Path, add: Add) -> None:
    for seed in (1, 2):
        add("vq-vae", seed, exact={"psnr": 24.0}, paper={"psnr": 24.1})
    path = folder / "cifar10" / "vq-vae-seed2.json"
    for found, mark in ((PAPER.hash, ""), ("0f988fa14ed6", "¹")):
        document = json.loads(path.read_text())
        document["protocols"]["paper"]["protocol_hash"] = found
        path.write_text(json.dumps(document))
        page = results_page(folder, None)
        assert len(rows(page, "table1", "VQ-VAE", f"ours, paper{mark}")) == 1
        assert len(rows(page, "table1", "VQ-VAE", "ours, exact")) == 1


def test_the_rate_of_continuous_latents_is_said(folder: Path, add: Add) -> None:
    add("vae", 1, exact={"psnr": 18.0, "rate": 20.0})
    assert "- vae, seed 1: a rate of 20.00 nats, 28.9 bits, an image" in block(results_page(folder, None), "table9")


def test_a_shared_device_is_said(folder: Path, add: Add) -> None:
    for seed, at_a_time in enumerate((None, 1, 3), start=1):
        add("vq-vae", seed, exact={"psnr": 24.0}, at_a_time=at_a_time)
    minutes = [line[4] for line in rows(results_page(folder, None), "runs")[2:]]
    assert minutes == ["1.5", "3.3", "3.3 (3 at a time)"]


def set_training(folder: Path, name: str, **settings: object) -> None:
    path = folder / "cifar10" / f"{name}.json"
    document = json.loads(path.read_text())
    document["config"]["training"] |= settings
    path.write_text(json.dumps(document))


def test_seeds_that_were_computed_in_other_ways_show_it(folder: Path, add: Add) -> None:
    for seed in (1, 2):
        add("vq-vae", seed, paper={"psnr": 24.0})
    set_training(folder, "vq-vae-seed1", compile=False, capture="auto")
    set_training(folder, "vq-vae-seed2", compile=True, capture="never")
    assert rows(results_page(folder, None), "table1", "VQ-VAE", "ours, paper")[0][-1].count("`") == 4


def test_no_mean_is_taken_over_other_settings(folder: Path, add: Add) -> None:
    def said() -> str:
        with pytest.raises(ArcvqError) as error:
            results_page(folder, None)
        return str(error.value)

    both = "cifar10/vq-vae-seed1.json and cifar10/vq-vae-seed2.json: no two seeds of one run, vq-vae: "
    add("vq-vae", 1, exact={"psnr": 24.0})
    add("vq-vae", 2, exact={"psnr": 25.0}, rate=1e-3)
    assert said() == f"{both}training.learning_rate is 0.0003 and 0.001"
    add("vq-vae", 2, exact={"psnr": 25.0}, epochs=4)
    assert said() == f"{both}training.epochs is 500 and 4"
    assert len(read_results(folder)) == 2  # the plan of a sweep takes no means
    add("vq-vae", 2, exact={"psnr": 25.0})
    set_training(folder, "vq-vae-seed2", gradient_clip=1.0)
    assert said() == f"{both}training.gradient_clip is null and 1.0"


def test_one_seed_under_two_names_is_not_two(folder: Path, add: Add) -> None:
    add("vq-vae", 1, exact={"psnr": 24.0}, precision="bf16")
    add("vq-vae-bf16", 1, exact={"psnr": 24.0}, precision="bf16")
    with pytest.raises(ArcvqError, match="no two seeds of one run, vq-vae-bf16: both are seed 1"):
        results_page(folder, None)


def test_another_precision_stands_beside(folder: Path, add: Add) -> None:
    add("arcvq-vae-bf16", 1, paper={"psnr": 24.0})
    add("arcvq-vae-mine", 1, paper={"psnr": 20.0})
    page = results_page(folder, None)
    assert rows(page, "table1", "ArcVQ-VAE, bf16", "ours, paper")[0][4] == "24.00"
    assert "20.00" not in block(page, "table1")
    assert rows(page, "runs", "cifar10/arcvq-vae-mine-seed1")


def test_precisions_are_not_mixed_whatever_the_file_is_called(folder: Path, add: Add) -> None:
    add("vq-vae", 1, exact={"psnr": 24.0})
    add("vq-vae", 2, exact={"psnr": 26.0}, precision="bf16")
    page = results_page(folder, None)
    assert rows(page, "table1", "VQ-VAE", "ours, exact")[0][2:5:2] == ["1", "24.00"]
    assert rows(page, "table1", "VQ-VAE, bf16", "ours, exact")[0][2:5:2] == ["1", "26.00"]
    assert rows(page, "runs", "cifar10/vq-vae-seed2")


def test_what_is_not_finite_is_not_measured(folder: Path, add: Add) -> None:
    add("vq-vae", 0, exact={"psnr": float("nan"), "l1": 0.5}, paper={"psnr": 24.0, "l1": None})
    page = results_page(folder, None)
    assert "nan" not in page
    assert rows(page, "runs", "cifar10/vq-vae-seed0")[0][2] == "not measured"


def test_differences_are_held_against_the_spread(folder: Path, add: Add) -> None:
    add("vq-vae", 1, paper={"psnr": 24.32, "rfid": 39.671})
    for seed, psnr in ((1, 24.6), (2, 24.9)):
        add("arcvq-vae", seed, paper={"psnr": psnr, "ssim": 0.8})
    page = results_page(folder, None)
    plain = rows(page, "differences", "vq-vae")[0]
    assert plain[3] == "+1.00 better, spread unknown"
    assert plain[6] == "0.00"
    arc = rows(page, "differences", "arcvq-vae")[0]
    assert arc[1] == "2"
    assert arc[3] == "-0.03, within the spread 0.21"
    assert arc[4] == "**-0.0989** worse, spread 0.0000"
    assert rows(page, "differences", "arcvq-vae, beside the appendix")[0][3] == "+0.04, within the spread 0.21"


def test_the_same_weights_under_both_protocols(folder: Path, add: Add) -> None:
    add("vq-vae", 1, paper={"psnr": 24.0}, exact={"psnr": 25.0})
    add("arcvq-vae", 1, paper={"psnr": 24.0}, exact={"psnr": 24.5})
    assert rows(results_page(folder, None), "protocols", "cifar10")[0][1:4] == ["2", "–", "-0.75 (-1.00 to -0.50)"]


def test_what_people_wrote_is_kept(folder: Path, add: Add) -> None:
    page = results_page(folder, None).replace("## Explanations\n", "## Explanations\n\nBecause.\n")
    add("vq-vae", 1, paper={"psnr": 24.0})
    again = results_page(folder, page)
    assert "## Explanations\n\nBecause.\n" in again
    assert again != page
    assert results_page(folder, again) == again
    # A block that is not there yet comes at the end.
    shorter = re.sub(r"## Table 2.*?table2:end -->\n", "", again, flags=re.S)
    assert "<!-- table2:begin -->" in results_page(folder, shorter)
    for lost in ("<!-- table1:begin -->", "<!-- table1:end -->"):
        with pytest.raises(ArcvqError, match=rf"the markers .*{lost}.* are not both there, .*: put them back, or"):
            results_page(folder, again.replace(lost, ""))


def test_wrong_folders_and_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="none: no such folder"):
        results_page(tmp_path / "none", None)
    (tmp_path / "file").touch()
    with pytest.raises(ArcvqError, match="file: is a file: expected a folder of results"):
        results_page(tmp_path / "file", None)
    (folder / "cifar10").mkdir()
    (folder / "cifar10" / "x-seed1.json").write_text("{}")
    with pytest.raises(ArcvqError, match=r"x-seed1\.json: not a result of arcvq evaluate: name is missing"):
        results_page(folder, None)


def test_a_result_under_another_name_is_not_one_more_seed(folder: Path, add: Add) -> None:
    add("vq-vae-bf16", 1, exact={"psnr": 24.0}, precision="bf16")
    own = folder / "cifar10" / "vq-vae-bf16-seed1.json"
    assert len(read_results(folder)) == 1
    for name in ("vq-vae-bf16-seed4", "vq-vae-seed1"):
        copy = own.with_name(f"{name}.json")
        copy.write_text(own.read_text())
        with pytest.raises(ArcvqError, match=rf"{name}\.json: tells of vq-vae-bf16-seed1: expected it in "):
            read_results(folder)
        copy.unlink()
    own.write_text(own.read_text().replace('"seed": 1, "data"', '"seed": 2, "data"'))
    with pytest.raises(ArcvqError, match=r"seed1\.json: tells of vq-vae-bf16-seed2"):
        read_results(folder)


def test_a_result_in_the_folder_of_another_data_set_is_told(folder: Path, add: Add) -> None:
    add("vq-vae", data="mnist", exact={"psnr": 28.0})
    (folder / "mnist").rename(folder / "cifar10")
    path = folder / "cifar10" / "vq-vae-seed1.json"
    before = path.read_text()
    path.write_text(before.replace('"data": "mnist"', '"data": "cifar10"'))  # trained on the one, measured on the other
    assert len(read_results(folder)) == 1
    path.write_text(before)
    with pytest.raises(
        ArcvqError, match=r"cifar10/vq-vae-seed1\.json: tells of mnist: expected it in a folder of that name"
    ):
        read_results(folder)


def test_seeds_that_were_measured_on_other_images_are_not_averaged(folder: Path, add: Add) -> None:
    add("vq-vae", 1, exact={"psnr": 24.0})
    add("vq-vae", 2, paper={"psnr": 24.0})  # nothing to compare with its neighbours
    add("vq-vae", 3, exact={"psnr": 24.0})
    results_page(folder, None)
    path = folder / "cifar10" / "vq-vae-seed3.json"
    path.write_text(path.read_text().replace('"images": 10000', '"images": 17'))
    with pytest.raises(ArcvqError, match=r"seed3.* and .*seed1.*: measured under exact on 17 and on 10,000 images"):
        results_page(folder, None)


def test_a_look_without_a_number_is_no_best_one(folder: Path, add: Add) -> None:
    add("vq-vae", paper={"psnr": 24.0}, looks={1.0: float("nan"), 250.0: 24.5, 500.0: 24.0})
    assert rows(results_page(folder, None), "looks", "cifar10, vq-vae")[0][-3:] == ["24.50", "250", "+0.500"]
    add("vq-vae", paper={"psnr": 24.0}, looks={250.0: 24.5, 500.0: float("nan")})
    assert "nan" not in results_page(folder, None)


def test_nothing_gives_no_cell() -> None:
    assert Cell.of([]) is None


def test_every_printed_number_has_a_place() -> None:
    printed = read_printed()
    main = {(data, row.run) for t in TABLES if isinstance(t, Table) for data in t.data for row in t.rows}
    assert {(data, run) for data in ("mnist", "cifar10") for run in printed[data]} <= main
    for each in TABLES:
        if isinstance(each, PrintedTable) and each.columns:
            keys = [key for key, _, _ in each.columns]
            assert printed[each.key]
            assert all(set(row) <= set(keys) for row in printed[each.key])


def test_every_row_is_an_experiment() -> None:
    assert all(run in EXPERIMENTS for each in TABLES if isinstance(each, Table) for run in each.runs())


def test_the_page_in_the_repository_is_up_to_date() -> None:
    before = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert results_page(ROOT / "results", before) == before, "run arcvq tables"
