"""What holds for every section on a GPU: wrong results fail, and no figure is above what can be."""

import itertools
from contextlib import suppress

import pytest

from sections import ORDER
from sections.common.page import Skip
from tests.mutations import MUTATIONS, events, run_section

# transposed last, and only where a result has two dimensions
WRONG = list(zip(ORDER, itertools.cycle(name for name in MUTATIONS if name != "transposed")))
WRONG += [("gemm", "transposed"), ("fused_epilogue", "transposed")]


@pytest.mark.gpu
@pytest.mark.parametrize("section, name", WRONG)
def test_wrong_results_fail_and_are_not_timed(gpu, section, name, capsys):
    with suppress(Skip):  # autotune, where every configuration is wrong
        page = run_section(section, gpu, mutate=MUTATIONS[name])
        assert page.failures
        checks = events(page, "check")
        # A single element is its own transpose.
        telling = [check for check in checks
                   if name != "transposed" or not check["case"].startswith("1x1x1 ")]
        assert telling and not any(check["passed"] for check in telling)
        assert events(page, "measurement") == []
    assert "FAILED  " in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("section", ["vector_add", "softmax"])
def test_no_bandwidth_is_above_the_ceiling(gpu, section, capsys):
    page = run_section(section, gpu)
    rates = [entry["value"] for entry in events(page, "measurement") if entry["unit"] == "GB/s"]
    assert rates and max(rates) < 1.08 * page.ceilings()["copy_GBps"]
    assert "The L2 cache is flushed before every call" in " ".join(capsys.readouterr().out.split())
