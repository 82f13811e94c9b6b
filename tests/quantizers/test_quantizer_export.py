"""The exported evaluation path: the same tokens, from plain operators that any runtime knows."""

from typing import Any

import pytest
import torch
from every_quantizer import CONTINUOUS, ONE_OF_EACH, SEARCHED, build
from torch._ops import OperatorBase
from torch.export import Dim, ExportedProgram, export

from arcvq import VQ, ArcVQ


def operators(program: ExportedProgram) -> set[str]:
    """Every operator, with those of nested graphs; Python's own arithmetic on sizes is none."""
    graphs = [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]
    targets = {node.target for graph in graphs for node in graph.nodes if node.op == "call_function"}
    return {str(target) for target in targets if isinstance(target, OperatorBase)}


@pytest.mark.parametrize(
    ("kind", "options", "strict"),
    [(kind, {}, False) for kind in ONE_OF_EACH if kind != "rotation"]  # same evaluation as vq
    + [(kind, {"heads": 2, "code_dim": 3}, True) for kind in ("arcvq", "hvq", "sq")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_exported_layer_gives_same_tokens_at_other_batch_size(kind: str, options: dict[str, Any], strict: bool) -> None:
    quantizer = build(kind, 4, 8, **options).eval()
    example = (torch.randn(2, 4, 6, 6),)
    program = export(quantizer, example, dynamic_shapes={"latents": {0: Dim("batch")}}, strict=strict)
    assert kind not in SEARCHED or "aten.matmul.default" in operators(program)
    assert not [name for name in operators(program) if "arcvq" in name]
    assert all(name.startswith("aten.") for name in operators(program.run_decompositions()))
    latents = torch.randn(5, 4, 6, 6)
    exported, ours = program.module()(latents), quantizer(latents)
    assert kind in CONTINUOUS or torch.equal(exported.tokens, ours.tokens)
    assert torch.equal(exported.quantized, ours.quantized)


def test_exported_program_can_be_saved_and_loaded(tmp_path: Any) -> None:
    quantizer = ArcVQ(4, 8).eval()
    latents = torch.randn(2, 4, 3, 3)
    torch.export.save(export(quantizer, (latents,)), tmp_path / "quantizer.pt2")
    loaded = torch.export.load(tmp_path / "quantizer.pt2")
    assert torch.equal(loaded.module()(latents).tokens, quantizer(latents).tokens)


def test_decode_can_be_exported() -> None:
    class Decoder(torch.nn.Module):
        def __init__(self, quantizer: VQ) -> None:
            super().__init__()
            self.quantizer = quantizer

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.quantizer.decode(tokens)

    decoder = Decoder(ArcVQ(4, 8)).eval()
    tokens = torch.randint(0, 8, (2, 3, 3))
    program = export(decoder, (tokens,))
    assert not [name for name in operators(program) if "arcvq" in name]
    assert torch.equal(program.module()(tokens), decoder(tokens))
