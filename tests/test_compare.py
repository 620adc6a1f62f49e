"""The comparison of two runs: what is paired, what counts as changed, what is said around it."""

import pytest

from sections.runner.compare import BEST, change, common, compare, step
from tests.made_results import made


def changed(section: str, **factors) -> dict:
    """The made results with numbers of a section's measurements multiplied."""
    found = made()
    for entry in measurements(found, section):
        for key, factor in factors.items():
            entry[key] *= factor
    return found


def measurements(found: dict, section: str) -> list[dict]:
    return next(each for each in found["sections"] if each["name"] == section)["measurements"]


def row(text: str, *words: str) -> list[str]:
    """The cells of the only line of a table that begins with these words."""
    lines = [line.split() for line in text.splitlines()]
    (found,) = (line for line in lines if line[: len(words)] == list(words))
    return found[len(words):]


# What is paired


def test_a_run_beside_itself_has_every_row_and_no_change():
    cases = common(made(), made())
    pairs = [pair for pairs in cases.values() for pair in pairs]
    assert len(pairs) == sum(len(section["measurements"]) for section in made()["sections"])
    assert all(mine == other for _, mine, other in pairs)
    assert [case for section, case in cases if section == "gemm"] == \
        ["4096x4096x4096 float16", "8192x8192x8192 float16"]
    text = compare(made(), made(), "old.json")
    assert f"0 stand better, 0 worse, {len(pairs)} as they did." in text
    assert "Around them nothing differs" in text


def test_another_schedule_is_no_pair_but_the_best_ones_are():
    other = made()
    for entry in measurements(other, "gemm"):
        entry["variant"] = entry["variant"].replace("swizzle=16", "swizzle=8")
    (pairs, large) = (common(made(), other)["gemm", f"{side}x{side}x{side} float16"]
                      for side in (4096, 8192))
    assert [variant for variant, _, _ in pairs][4:] == [BEST] and len(pairs) == 5
    assert "swizzle=16" in pairs[-1][1]["variant"] and "swizzle=8" in pairs[-1][2]["variant"]
    assert [variant for variant, _, _ in large] == [BEST]
    assert compare(made(), other, "x").count("\nthe best of each ") == 2


def test_of_sdpa_the_backend_may_differ():
    other = made()
    for entry in measurements(other, "flash_attention"):
        entry["baseline"] = entry["baseline"].replace("cuDNN", "flash")
    pairs = common(made(), other)["flash_attention", "4x16x4096x128 float16 full"]
    assert [mine["baseline"] for _, mine, _ in pairs] == ["SDPA (cuDNN)", "torch, unfused"]


def test_what_only_one_has_is_left_out():
    other = made()
    other["sections"] = [each for each in other["sections"] if each["name"] in ("gemm", "softmax")]
    assert {section for section, _ in common(made(), other)} == {"gemm", "softmax"}
    measurements(other, "gemm")[0]["ms"] = None
    assert len(common(made(), other)["gemm", "4096x4096x4096 float16"]) == 4


# What counts as changed


@pytest.mark.parametrize("mine, other, verdict", [
    ((1.00, 0.99, 1.01), (0.90, 0.89, 0.91), "better"),
    ((0.90, 0.89, 0.91), (1.00, 0.99, 1.01), "worse"),
    ((1.00, 0.95, 1.05), (0.90, 0.85, 0.96), ""),  # the spreads overlap
    ((0.90, 0.85, 0.96), (1.00, 0.95, 1.05), ""),
    ((1.000, 1.000, 1.000), (0.995, 0.995, 0.995), ""),  # apart, but by no more than two runs are
    ((0.995, 0.995, 0.995), (1.000, 1.000, 1.000), ""),
])
def test_a_change_is_beyond_the_spread(mine, other, verdict):
    keys = ("ratio", "ratio_low", "ratio_high")
    assert change(*(dict(zip(keys, each, strict=True)) for each in (mine, other))) == verdict


def test_times_and_ratios_have_their_direction():
    """This run takes half the time, and its baseline is what it was: it stands better."""
    mine = changed("vector_add", ms=0.5, ratio=2, ratio_low=2, ratio_high=2)
    text = compare(mine, made(), "old.json")
    assert row(text, "block_N=1024,", "128", "threads") == \
        ["0.369", "0.738", "2.00x", "torch.add", "2.00x", "1.00x", "better"]
    assert "2 stand better, 0 worse" in text
    assert "0 stand better, 2 worse" in compare(made(), mine, "new.json")


# What is said around it


def test_what_differs_stands_above():
    other = made("arch", tilelang="0.1.14", arch="sm_75")
    other["ceilings"]["copy_GBps"] = 4100.0
    other["sections"][2]["status"] = "FAIL"
    text = compare(made(), other, "old.json")
    assert text.startswith("Comparison: this run on NVIDIA H200, the other on sm_75 code on NVIDIA "
                           "H200 (old.json)")
    above = text[: text.index("vector_add: ")]
    assert row(above, "tilelang") == ["0.1.15", "0.1.14"] and row(above, "mode") == ["gpu", "arch"]
    assert row(above, "copy", "ceiling") == ["4250", "GB/s", "4100", "GB/s"]
    assert row(above, "fused_epilogue") == ["PASS", "FAIL"]
    assert "torch  " not in above and "matmul ceiling" not in above


@pytest.mark.parametrize("mine, other, why", [
    (made("rehearsal"), made(), ": this run timed nothing."),
    (made(), made("rehearsal"), ": the other timed nothing."),
    (made("rehearsal"), made("rehearsal"), ": this run and the other timed nothing."),
])
def test_nothing_in_common(mine, other, why):
    text = compare(mine, other, "x")
    assert text.endswith("The two runs have no measurement in common" + why)


def test_timed_but_nothing_in_common():
    mine, other = made(), made()
    mine["sections"], other["sections"] = mine["sections"][:1], other["sections"][1:]
    assert compare(mine, other, "x").endswith("no measurement in common.")


@pytest.mark.parametrize("above, variant, words", [
    (None, "128x128x32, 0 stages", "128x128x32, 0 stages"),
    ("128x128x32, 0 stages", "128x128x32, 3 stages", "+ 3 stages"),
    ("a tile, 3 stages", "a tile, 1 stage", "+ 1 stage"),
    ("a tile, swizzle=0", "a tile, swizzle=16, full_row", "+ swizzle=16, full_row"),
    ("a tile, full_row, store_shared", "a tile, store_shared", "+ no full_row"),
    ("64x64, 2 stages", "one row a block", "one row a block"),
    ("64x64, 2 stages", "gemm_hopper: 64x64, 4 stages", "gemm_hopper: 64x64, 4 stages"),
    ("64x64, 2 stages", "gemm_hopper, 64x64, 4 stages", "gemm_hopper, 64x64, 4 stages"),
    ("gemm_hopper, 64x64, 4 stages", "gemm_hopper, 64x64, 5 stages", "+ 5 stages"),
    ("64x64, 2 stages", "128x64, 3 stages", "+ 128x64, 3 stages"),
    ("tuned: 64x64, 2 stages", "64x64, 2 stages", "64x64, 2 stages"),
    ("sm_75 code: 64x64", "sm_80 code, cp.async: 64x64", "+ sm_80 code, cp.async"),
    ("sm_80 code: 64x64, 2 stages", "sm_80 code: 64x64, 3 stages", "+ 3 stages"),
    ("64x64, 2 stages", BEST, BEST),
    (BEST, "64x64, 2 stages", "64x64, 2 stages"),
])
def test_a_row_names_what_is_new(above, variant, words):
    assert step(above, variant) == words


def test_lines_fit_a_screen():
    text = compare(made(), changed("gemm", ratio=0.5, ratio_low=0.5, ratio_high=0.5), "old.json")
    assert max(map(len, text.splitlines())) <= 115
    assert "128x256x64, 3 stages, 256 threads, swizzle=16,\nfull_row, store_shared " in text
