"""Reading results, and the documents with their numbers."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from arcvq.errors import ArcvqError
from reproduction.__main__ import main
from reproduction.documents import replace_between_markers, replace_measured_line
from reproduction.results import Mean, Results, mean_metric, mean_of
from reproduction.rows import csv_text
from reproduction.tables import paper_beside_ours, seed_and_mean_cells

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with three seeds of one run."""
    for seed in (1, 2, 3):
        name = f"vq-vae-bf16-seed{seed}.json"
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        shutil.copy(RESULTS / "cifar10" / name, tmp_path / "cifar10" / name)
    return tmp_path


def change(folder: Path, seed: int, **parts: Any) -> None:
    """Replace parts of a result file."""
    path = folder / f"cifar10/vq-vae-bf16-seed{seed}.json"
    document = json.loads(path.read_text())
    for key, part in parts.items():
        document[key] = {**document[key], **part} if isinstance(part, dict) else part
    path.write_text(json.dumps(document))


def test_documents_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--check", "--results", str(RESULTS)]) == 0, capsys.readouterr().out


def test_every_result_is_a_row() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(Results(RESULTS)))))
    found = {f"{row['data']}/{row['name']}-seed{row['seed']}" for row in rows}
    assert found == {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.json")}


def test_results_page_is_short_and_prose_numbers_are_in_tables() -> None:
    page = (ROOT / "RESULTS.md").read_text()
    assert len(page.splitlines()) <= 450
    written = re.findall(r"<!-- (\S+):begin -->(.*?)<!-- \1:end -->", page, re.S)
    tables = "".join(text for _, text in written)
    prose = re.sub(r"<!-- (\S+):begin -->.*?<!-- \1:end -->", "", page, flags=re.S)
    numbers = re.findall(r"\d+\.\d+%?", prose)
    assert numbers
    assert not [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", tables)]


def test_mean_has_sample_deviation() -> None:
    assert mean_of([1.0, 3.0]) == Mean(2.0, pytest.approx(2**0.5), 2)
    assert mean_of([1.0]) == Mean(1.0, None, 1)
    assert mean_of([]) is None


def test_seeds_are_averaged(folder: Path) -> None:
    found = mean_metric(Results(folder).get("cifar10", "vq-vae"), "exact", "psnr")
    files = [json.loads(path.read_text()) for path in folder.glob("*/*.json")]
    values = [document["protocols"]["exact"]["metrics"]["psnr"] for document in files]
    assert found is not None
    assert (found.value, found.seeds) == (pytest.approx(sum(values) / 3), 3)


def test_seeds_of_different_settings_raise(folder: Path) -> None:
    config = json.loads((folder / "cifar10/vq-vae-bf16-seed1.json").read_text())["config"]
    change(folder, 2, config={"training": {**config["training"], "seed": 2, "learning_rate": 0.5}})
    with pytest.raises(ArcvqError, match=r"training\.learning_rate"):
        Results(folder)


def test_compute_settings_do_not_matter(folder: Path) -> None:
    config = json.loads((folder / "cifar10/vq-vae-bf16-seed2.json").read_text())["config"]
    change(folder, 2, config={"training": {**config["training"], "compile": False, "checkpoints": 3}})
    seeds = Results(folder).get("cifar10", "vq-vae")
    assert len({seed.config_hash for seed in seeds}) == 1


def test_precisions_are_not_mixed(folder: Path) -> None:
    config = json.loads((folder / "cifar10/vq-vae-bf16-seed2.json").read_text())["config"]
    change(folder, 2, config={"training": {**config["training"], "precision": "fp32"}}, name="vq-vae")
    path = folder / "cifar10/vq-vae-bf16-seed2.json"
    path.rename(path.with_name("vq-vae-seed2.json"))
    assert [seed.seed for seed in Results(folder).get("cifar10", "vq-vae")] == [1, 3]


@pytest.mark.parametrize("text", ["[]", "{}", '{"name": "a", "seed": 1}', "no JSON"])
def test_wrong_result_file_raises_with_name(folder: Path, text: str) -> None:
    (folder / "cifar10/a-seed1.json").write_text(text)
    with pytest.raises(ArcvqError, match=r"a-seed1\.json"):
        Results(folder)


def test_renamed_copy_of_result_raises(folder: Path) -> None:
    shutil.copy(folder / "cifar10/vq-vae-bf16-seed1.json", folder / "cifar10/vq-vae-bf16-seed4.json")
    with pytest.raises(ArcvqError, match="seed4"):
        Results(folder)


def test_missing_results_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="nowhere"):
        Results(tmp_path / "nowhere")


def test_old_protocol_revision_is_marked(folder: Path) -> None:
    for seed in (1, 2, 3):
        document = json.loads((folder / f"cifar10/vq-vae-bf16-seed{seed}.json").read_text())
        protocols = document["protocols"]
        change(folder, seed, protocols={"paper": {**protocols["paper"], "protocol_hash": "of the first"}})
    table = {"metrics": ["psnr"], "labels": {"vq-vae": "VQ-VAE"}, "runs": ["vq-vae"], "data": ["cifar10"]}
    lines = paper_beside_ours(table, Results(folder))
    assert any(re.match(r"\| cifar10 \| VQ-VAE \| paper¹ \| 3 \| [^|]+ \(23\.32\) \|", line) for line in lines)
    assert any("| exact |" in line for line in lines)


def test_diverged_seed_is_counted_and_not_averaged(folder: Path) -> None:
    change(folder, 3, diverged="the loss is nan")
    path = folder / "cifar10/vq-vae-bf16-seed3.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"protocols": {}}))
    assert seed_and_mean_cells(Results(folder).get("cifar10", "vq-vae"), "exact", ["psnr"])[0] == "2 (1 diverged)"


def test_text_outside_markers_is_kept() -> None:
    text = "before\n<!-- a:begin -->\nold\n<!-- a:end -->\nafter\n"
    assert replace_between_markers(Path("p"), text, "a", ["new"]) == text.replace("old", "new")
    with pytest.raises(ArcvqError, match="b:begin"):
        replace_between_markers(Path("p"), text, "b", ["new"])


def test_preset_header_ends_with_measured_line() -> None:
    text = "# About.\n# Measured: old\nsystem: vq-vae\n"
    assert replace_measured_line(text, "# Measured: new") == text.replace("old", "new")


def test_precision_of_generated_images_is_not_that_of_the_training() -> None:
    with (ROOT / "results" / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["protocol"] == "generation"]
    assert rows
    assert all(row["precision"] in ("fp32", "bf16", "fp16") for row in rows)
    assert all(0 <= float(row["sample_precision"]) <= 1 for row in rows)
