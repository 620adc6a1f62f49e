"""sections/common/page.py: the rules that a page keeps for its essay."""

import time
from types import SimpleNamespace

import pytest
import torch

from sections.common.codegen import Code
from sections.common.device import Device
from sections.common.measure import Work
from sections.common.page import Page, kilobytes, squeeze

CPU = Device("rehearsal", "sm_90a", 232448)
GPU = Device("gpu", "sm_90a", 232448, "a GPU", "sm_90a", 132, 140_000_000_000)


def double(x):
    return 2 * x


def wrong(x):
    return 2 * x + 1


@pytest.fixture
def told():
    return []


@pytest.fixture
def page(told):
    return Page(CPU, emit=told.append)


def test_a_check_that_holds_is_told_with_the_next_output(page, told, capsys):
    x = torch.ones(4)
    assert page.check("4 float32", double, (x,), 2 * x)
    assert capsys.readouterr().out == ""
    page.say("next")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  checked  4 float32: worst relative error 0.0e+00 (bound ")
    assert lines[1] == "  next"
    assert told == [{"event": "progress", "text": "checking 4 float32"},
                    {"event": "check", "case": "4 float32", "rel_error": 0.0,
                     "bound": told[1]["bound"], "passed": True}]
    assert page.failures == []


def test_a_check_that_fails_is_told_at_once_and_the_section_goes_on(page, told, capsys):
    x = torch.ones(4)
    assert not page.check("4 float32", wrong, (x,), 2 * x)
    assert "FAILED  check 4 float32: 4 of 4 elements wrong" in capsys.readouterr().out
    assert told[1]["passed"] is False
    assert page.failures == ["check 4 float32: 4 of 4 elements wrong, the first at 0: 3, "
                             "expected 2"]


def leaves_half_unwritten(page) -> None:
    """Run a kernel where the right result of an earlier one lies in memory that was given back."""
    from tests.wrong_kernels import leaves_the_second_half

    N = 1 << 20
    x = torch.ones(N, device=page.device.torch_device)
    (kernel,) = page.build([(leaves_the_second_half, {"N": N})])
    for _ in range(8):  # blocks of memory that a new output may come to lie in
        x.clone()
    assert not page.check("unwritten", kernel, (x,), x)
    assert f"the first at {N // 2}: nan, expected 1" in page.failures[0]
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_a_kernel_leaves_unwritten_is_no_result_of_an_earlier_one(rehearsal):
    leaves_half_unwritten(Page(rehearsal))


@pytest.mark.gpu
def test_what_a_kernel_leaves_unwritten_on_a_gpu_is_no_result_of_an_earlier_one(gpu):
    leaves_half_unwritten(Page(gpu))


def test_nothing_is_timed_in_rehearsal(page):
    with pytest.raises(RuntimeError, match="nothing is timed in rehearsal"):
        page.measure("case", "variant", double, (), {}, Work(flops=1))


def test_a_kernel_that_failed_a_check_or_had_none_is_never_timed(told, capsys):
    page = Page(GPU, emit=told.append)
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match="has not passed a check, so it is not timed"):
        page.measure("case", "variant", double, (x,), {"torch": lambda: None}, Work(flops=1))
    page.check("good", wrong, (x,), 2 * x + 1)
    page.check("bad", wrong, (x,), 2 * x)
    with pytest.raises(RuntimeError, match="so it is not timed"):
        page.measure("case", "variant", wrong, (x,), {"torch": lambda: None}, Work(flops=1))


def test_a_measurement_has_all_that_the_results_need(told, monkeypatch):
    from sections.common import measure

    page = Page(GPU, emit=told.append, ceilings={"copy_GBps": 4000.0, "matmul_TFLOPs": 800.0})
    monkeypatch.setattr(measure, "copy_of", lambda bytes_moved: torch.ones_like)
    monkeypatch.setattr(measure, "time_ms", lambda function, budget=20.0, graph=False:
                        2.0 if function is base else 1.0)
    base = torch.ones
    x = torch.ones(4)
    page.check("c", double, (x,), 2 * x)
    (entry,) = page.measure("c", "v", double, (x,), {"torch": base},
                            Work(bytes_moved=2_000_000_000))
    assert entry == {
        "event": "measurement", "case": "c", "variant": "v", "ms": 1.0, "baseline": "torch",
        "baseline_ms": 2.0, "ratio": 2.0, "ratio_low": 2.0, "ratio_high": 2.0, "value": 2000.0,
        "unit": "GB/s", "of_ceiling": 0.5, "shared_bytes": None,
    }
    assert told[-1] == entry
    page.headline(entry)
    assert told[-1] == {**entry, "event": "headline"}
    monkeypatch.setattr(double, "code", SimpleNamespace(shared_bytes=49152), raising=False)
    both = page.measure("c", "v", double, (x,), {"torch": torch.zeros, "copy ceiling": None},
                        Work(bytes_moved=8), rivals={"by hand": base})
    assert [entry["baseline"] for entry in both] == ["torch", "copy ceiling"]
    assert [entry["shared_bytes"] for entry in both] == [49152, 49152]
    assert all(entry["rivals"] == {"by hand": {"ms": 2.0, "ratio": 2.0}} for entry in both)


def test_torch_compile_may_fail_or_hang(page, monkeypatch, capsys):
    from sections.common import page as module

    def broken(function, **options):
        raise RuntimeError("no Triton\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    assert page.torch_compiled(lambda: 1) == {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: lambda: time.sleep(30))
    monkeypatch.setattr(module, "COMPILE_SECONDS", 1)
    start = time.monotonic()
    assert page.torch_compiled(lambda: 1) == {}
    assert time.monotonic() - start < 10
    text = capsys.readouterr().out
    assert "left out: RuntimeError: no Triton\n" in text and "not ready after 1 s" in text
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert page.torch_compiled(lambda: 7)["torch.compile"]() == 7
    page.quick = True
    assert page.torch_compiled(lambda: 7) == {}, "never in quick mode"


def test_a_kernel_that_did_not_compile_fails_its_check(page, capsys):
    x = torch.ones(4)
    assert not page.check("4 float32", ValueError("pages of CUDA\nerror: no such tile"), (x,), x)
    assert page.failures == ["4 float32 did not compile: ValueError: error: no such tile"]
    assert "pages of CUDA" in page.details[0]


def test_of_a_long_error_the_line_that_tells_is_the_problem(page, capsys):
    error = RuntimeError("Compilation error:\nld: final link failed: No space left on device\n"
                         "#include <x.h>\nvoid f() {\n}\n")
    assert not page.check("a case", error, (), None)
    assert page.failures == ["a case did not compile: RuntimeError: ld: final link failed: No "
                             "space left on device"]


def test_timings_have_a_row_a_baseline(page, capsys):
    row = {"case": "c", "variant": "v", "ms": 0.5, "value": 700.4, "unit": "TFLOP/s",
           "baseline": "cuBLAS", "baseline_ms": 0.25, "ratio": 0.5, "ratio_low": 0.4,
           "ratio_high": 0.61}
    page.timings([row, {**row, "baseline": "torch"}])
    assert capsys.readouterr().out.splitlines()[0] == "  Schedule: v."
    page.timings([row, {**row, "baseline": "torch", "variant": "w"}])
    lines = [line.split() for line in capsys.readouterr().out.split("\n") if line]
    head, first, second = lines[:3]
    assert head == ["case", "kernel", "ms", "TFLOP/s", "against", "its", "ms", "ratio", "spread"]
    assert first == ["c", "v", "0.500", "700", "cuBLAS", "0.250", "0.50x", "0.40-0.61"]
    assert second[1] == "w" and second[4] == "torch"
    page.timings([])
    assert capsys.readouterr().out == "  No kernel passed its checks, so none was timed.\n"


def test_values_of_the_command_line_replace_those_of_the_schedule():
    page = Page(CPU, overrides={"threads": 64})
    assert page.schedule({"block_N": 1, "threads": 128}) == {"block_N": 1, "threads": 64}
    with pytest.raises(SystemExit, match="unknown name threads; this section has: block_N=1"):
        page.schedule({"block_N": 1})


@pytest.mark.parametrize("name, value, needed", [
    ("block_M", 0, "a whole number, 1 or more"), ("block_M", -1, "a whole number, 1 or more"),
    ("block_M", 2.5, "a whole number, 1 or more"), ("block_M", True, "a whole number, 1 or more"),
    ("block_M", "many", "a whole number, 1 or more"), ("block_M", (1, 2), "a whole number"),
    ("threads", 100000, "a multiple of 32, 1024 at most"), ("threads", 7, "a multiple of 32"),
    ("threads", "x", "a multiple of 32"), ("threads", 1024, ""),
    ("num_stages", -1, "a whole number, 0 or more"), ("num_stages", 0, ""),
    ("fast", 1, "True or False"), ("fast", None, "True or False"), ("fast", True, ""),
])
def test_a_value_that_no_schedule_can_have_is_refused(name, value, needed):
    page = Page(CPU, overrides={name: value})
    defaults = {"block_M": 64, "threads": 128, "num_stages": 2, "fast": False}
    if not needed:
        assert page.schedule(defaults)[name] is value
        return
    with pytest.raises(SystemExit) as error:
        page.schedule(defaults)
    assert str(error.value).startswith(f"{name}={value!r}: needed: {needed}")


def test_source_is_shown_with_file_and_line(page, capsys):
    from sections.vector_add import vector_add

    page.show(vector_add)
    lines = capsys.readouterr().out.splitlines()
    path, line = lines[1].strip().split(":")
    assert path == "sections/vector_add.py"
    assert lines[2] == f"  {line:>4} | @tilelang.jit"


def test_prose_is_wrapped(page, capsys):
    page.say("one two\n    three " * 30)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and all(len(line) <= 98 for line in lines)
    assert "one two three one two" in lines[0]


def test_a_limit_is_printed_and_kept(page, capsys):
    page.limit("""memory,
        and nothing else.""")
    assert page.limit_text == "memory, and nothing else."
    assert capsys.readouterr().out == "  Limit: memory, and nothing else.\n"


def test_landmarks_name_shared_memory_only_where_there_is_some(page, capsys):
    source = 'extern "C" __global__ void f(float* A);\nextern "C" __global__ void f(float* A) {\n' \
             "  __syncthreads();\n}\n"
    page.landmarks(Code("f", "sm_90a", source, 0, 128))
    page.landmarks(Code("f", "sm_90a", source, 2048, 128))
    text = capsys.readouterr().out
    assert "(128 threads a block):" in text
    assert "(128 threads a block, 2 KB shared memory):" in text
    assert "  3  __syncthreads();" in text


def test_long_index_arithmetic_is_left_out():
    line = ("*(float4*)(A_local + 0) = *(float4*)(A + ((((int)blockIdx.x) * 1024) + "
            "(((int)threadIdx.x) * 4)));")
    assert squeeze(line, 200) == (
        "*(float4*)(A_local + 0) = *(float4*)(A + ((blockIdx.x * 1024) + (threadIdx.x * 4)));")
    assert squeeze(line, 58) == "*(float4*)(A_local + 0) = *(float4*)(A + ((...) + (...)));"
    assert len(squeeze(line, 20)) == 20
    assert squeeze("short();", 20) == "short();"


def test_kilobytes():
    assert [kilobytes(n) for n in (0, 49152, 1536)] == ["0 KB", "48 KB", "1.5 KB"]
