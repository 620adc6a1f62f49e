"""A kernel that takes another block's tile must fail in rehearsal, too: its sizes have several."""

import importlib.util

import pytest

from tests.command import ROOT
from tests.mutations import MutatedPage

SLIPS = [
    ("gemm", "T.copy(A[by * block_M, k * block_K]", "T.copy(A[0, k * block_K]"),
    ("gemm", "T.copy(B[k * block_K, bx * block_N]", "T.copy(B[k * block_K, 0]"),
    ("fused_epilogue", "T.copy(A[by * block_M, k * block_K]", "T.copy(A[0, k * block_K]"),
    ("fused_epilogue", "T.copy(bias[bx * block_N]", "T.copy(bias[0]"),
    ("flash_attention", "Q[batch, first", "Q[0, first"),
    ("flash_attention", "Q[batch, first : first + block_M, head", "Q[batch, 0 : block_M, head"),
    ("flash_attention", "V[batch, k * block_N : (k + 1) * block_N, head",
     "V[batch, k * block_N : (k + 1) * block_N, 0"),
]


@pytest.mark.parametrize("name, right, wrong", SLIPS)
def test_another_block_s_tile_is_seen(rehearsal, tmp_path, capsys, name, right, wrong):
    source = (ROOT / "sections" / f"{name}.py").read_text()
    assert source.count(right) == 1
    file = tmp_path / f"wrong_{name}.py"
    file.write_text(source.replace(right, wrong))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    section = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(section)
    told = []
    page = MutatedPage(rehearsal, quick=True, emit=told.append)
    page.events = told
    section.run(page)
    checks = [event for event in told if event["event"] == "check"]
    telling = [check for check in checks if check["case"] == checks[-1]["case"]]
    assert telling and not any(check["passed"] for check in telling)
