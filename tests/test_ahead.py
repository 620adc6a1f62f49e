"""Kernels of all sections compiled before the first: what is compiled, and what a fault costs."""

import importlib
import sys
import textwrap

import pytest

from sections.common import ahead, codegen
from sections.common import build as building
from sections.common.device import SHARED_BYTES, Device
from sections.common.page import Page
from tests.mutations import run_section

HOPPER = Device("gpu", "sm_90a", SHARED_BYTES["sm_90a"], "H100", "sm_90a", 132, 80 << 30)
SECTION = """
    import os
    from sections.common.page import Skip
    from tests.kernels_for_tests import add, scale

    def run(page):
        page.say("a learner reads this once")
        print("and this")
        {before}
        (kernel,) = page.build([(add, {{"N": {size}}})], read=[(scale, {{"N": {size}}}, "sm_75")])
        page.say("after the build")
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Makes section modules: the lines before `build`, one module each; returns their names."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILELANG_PRINT_ON_COMPILATION", "0")
    monkeypatch.setattr(building, "_compiled", {})
    monkeypatch.setattr(codegen, "_memory", {})
    monkeypatch.setattr(building, "cores", lambda: 2)

    def make(*before):
        names = []
        for number, line in enumerate(before):
            names.append(f"made_for_ahead_{number}")
            text = textwrap.dedent(SECTION).format(before=line, size=64 + number)
            (tmp_path / f"{names[-1]}.py").write_text(text)
            sys.modules.pop(names[-1], None)
        importlib.invalidate_caches()
        return names
    return make


def compile_ahead(names):
    told = []
    done = ahead.compile_ahead(HOPPER, names, True, told.append)
    return done, told


def test_what_sections_build_first_is_compiled_and_nothing_is_printed(modules, capfd):
    names = modules("pass", "pass")
    done, told = compile_ahead(names)
    assert capfd.readouterr().out == ""
    assert done.startswith("2 kernels of 2 sections compiled first")
    assert told[-1] == "compiling, 2 of 2 kernels done"
    assert len(building._compiled) == 2
    text = importlib.import_module(names[0]).scale
    assert codegen._memory  # what is read was generated, too
    before = dict(building._compiled)
    (kernel,) = building.build(HOPPER, [(importlib.import_module(names[1]).add, {"N": 65})])
    assert building._compiled == before and kernel.code.arch == "sm_90a"
    assert codegen.generate(text, "sm_75", N=64).arch == "sm_75"


@pytest.mark.parametrize("fault", [
    "raise RuntimeError('x')", "raise SystemExit(3)", "raise KeyboardInterrupt", "raise Skip('x')",
    "import nosuchmodule", "page.schedule({}); page.overrides['x'] = 1; page.schedule({})",
    "return",
])
def test_a_section_that_fails_before_it_builds_costs_the_others_nothing(modules, fault):
    done, _ = compile_ahead(modules(fault, "pass"))
    assert done.startswith("1 kernels of 2 sections")
    assert len(building._compiled) == 1


def test_a_kernel_that_does_not_compile_is_left_to_its_section(modules):
    done, _ = compile_ahead(modules("add = None", "pass"))
    assert done.startswith("1 kernels of 2 sections")


def test_only_where_many_cores_have_work(monkeypatch):
    rehearsal = Device("rehearsal", "sm_90a", SHARED_BYTES["sm_90a"])
    for cores, device, names, expected in [
        (16, HOPPER, ["a", "b"], True), (8, HOPPER, ["a", "b"], True),
        (7, HOPPER, ["a", "b"], False), (16, HOPPER, ["a"], False),
        (16, rehearsal, ["a", "b"], False),
    ]:
        monkeypatch.setattr(ahead, "cores", lambda cores=cores: cores)
        assert ahead.worthwhile(device, names) is expected


def unusable(program, where):
    """Stands for a compile whose kernel is not called."""
    return None, 0.0


def test_every_section_names_all_its_kernels_at_once(monkeypatch):
    """Nothing is left to compile after a section's first build: else it would wait again."""
    for name in ("vector_add", "gemm", "fused_epilogue", "softmax", "flash_attention", "debugging",
                 "architectures"):
        device = Device("rehearsal", "sm_90a", SHARED_BYTES["sm_90a"])
        compiled = []
        original = building._compile

        looks = name in ("fused_epilogue", "debugging")  # at results; the others only check theirs

        def spy(program, where, compiled=compiled, original=original if looks else unusable):
            compiled[-1].append(str(program.tir.attrs["global_symbol"]))
            return original(program, where)

        build = building.build

        def noted(*arguments, compiled=compiled, build=build, **options):
            compiled.append([])
            return build(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(building, "_compiled", {})
            patch.setattr(building, "_compile", spy)
            patch.setattr(building, "build", noted)
            if not looks:
                patch.setattr(Page, "check", lambda *arguments, **bounds: True)
            run_section(name, device)
        first, *later = compiled
        assert first and not any(later), name
