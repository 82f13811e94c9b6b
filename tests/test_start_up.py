"""Which modules a start imports; unlike its time, this does not depend on the machine's load."""

import subprocess
import sys

HEAVY = ("torch._dynamo", "torchvision", "accelerate", "sklearn", "matplotlib", "tensorboard")


def imported_by(code: str) -> set[str]:
    """The modules that are loaded after running the code in a new process."""
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_does_not_import_torch() -> None:
    code = "from arcvq.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    modules = imported_by(code)
    assert "arcvq.cli" in modules
    assert "torch" not in modules
    assert "numpy" not in modules


def test_layer_imports_no_heavy_module() -> None:
    extra = imported_by("from arcvq import ArcVQ") - imported_by("import torch")
    assert "arcvq.quantizers" in extra
    assert not [name for name in HEAVY if name in extra]


def test_priors_do_not_import_diffusers() -> None:
    modules = imported_by("from arcvq.priors import PRIORS, Ldm")
    assert "arcvq.priors.ldm" in modules
    assert "diffusers" not in modules
