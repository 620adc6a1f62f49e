"""sections/autotune.py"""

import pytest
from tilelang.autotuner.param import AutotuneResult

from sections import autotune, gemm
from sections.common import codegen
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device
from sections.common.page import Page, Skip
from tests.kernels_for_tests import nvcc_error
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

QUICK_ARCHITECTURES = ("sm_90a", "sm_100a", "sm_120a")  # 0.2 s to lower; the others 1.4 s


def device_for(arch):
    return Device("rehearsal", arch, SHARED_BYTES[arch])


def compiler_figure(device, config):
    """Shared memory as the compiler has it."""
    return codegen.generate(gemm.gemm, device.arch, **gemm.sizes(4096, 4096, 4096),
                            **autotune.fixed_part(device), **config).shared_bytes


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_space_is_wide_and_some_of_it_does_not_fit(arch):
    device = device_for(arch)
    configs = autotune.space(device)
    assert len(configs) >= 24
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    fixed = autotune.fixed_part(device)
    fitting = [c for c in configs if autotune.estimate(c, fixed) <= device.shared_bytes]
    assert 12 <= len(fitting) < len(configs)
    hand_made = gemm.best_schedule(device)
    assert {**configs[0], **fixed} == hand_made and configs[0] in fitting
    for name in autotune.TUNED:
        assert len({config[name] for config in configs}) > 1, f"{name} is not tuned"


def test_the_estimate_is_the_compilers_figure():
    """For a third of the configurations, other ones for each architecture."""
    for number, arch in enumerate(QUICK_ARCHITECTURES):
        device = device_for(arch)
        fixed = autotune.fixed_part(device)
        for config in autotune.space(device)[number::3]:
            assert autotune.estimate(config, fixed) == compiler_figure(device, config), config


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_estimate_is_the_compilers_figure_for_all(arch):
    device = device_for(arch)
    fixed = autotune.fixed_part(device)
    for config in autotune.space(device):
        assert autotune.estimate(config, fixed) == compiler_figure(device, config), config


def test_it_tunes_for_real_in_rehearsal(rehearsal, capsys):
    page = run_section("autotune", rehearsal)
    assert page.failures == []
    assert len(events(page, "check")) == autotune.REHEARSED + 1
    text = capsys.readouterr().out
    assert "left out: shared memory" in text and "288 KB" in text
    assert "hand-made" in text and "textbook" in text
    assert "On the 4 that ran it chose" in text
    assert "Tuned Latency" not in text, "the tuner's own lines stay out of the page"


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    with pytest.raises(Skip, match="wrong result"):
        run_section("autotune", rehearsal, mutate=MUTATIONS[name])
    assert "FAILED  check" in capsys.readouterr().out


def only(monkeypatch, *configs):
    monkeypatch.setattr(autotune, "space", lambda device: [dict(config) for config in configs])


GOOD = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256,
        "swizzle": 16}


def test_the_first_configuration_is_invalid(rehearsal, monkeypatch, capsys):
    only(monkeypatch, {**GOOD, "threads": 0}, GOOD, {**GOOD, "num_stages": 2})
    page = run_section("autotune", rehearsal)
    assert page.failures == []
    text = " ".join(capsys.readouterr().out.split())
    assert "Did not compile: 128x128x64, 3 stages, 0 threads, swizzle=16. " in text
    assert "On the 2 that ran it chose" in text


def test_all_configurations_are_invalid(rehearsal, monkeypatch, capsys):
    only(monkeypatch, {**GOOD, "threads": 0}, {**GOOD, "block_M": 0})
    with pytest.raises(Skip, match=r"no configuration is left to tune: did not compile \(\w+: "):
        run_section("autotune", rehearsal)


def test_what_a_compiler_says_is_one_line(rehearsal, monkeypatch, capsys):
    """However many configurations it refuses for the same reason."""
    only(monkeypatch, GOOD, {**GOOD, "num_stages": 2}, {**GOOD, "swizzle": 0})
    error = nvcc_error()
    real = Page.build

    def build(page, jobs):
        return [error, error, *real(page, list(jobs)[2:])]

    monkeypatch.setattr(Page, "build", build)
    page = run_section("autotune", rehearsal)
    assert page.failures == [] and "value_400" in page.details[0]
    text = capsys.readouterr().out
    assert "value_" not in text and max(map(len, text.splitlines())) <= 160
    told = " ".join(text.split())
    assert told.count('error: identifier "no_such_name" is undefined') == 1
    assert "On the 1 that ran it chose" in text


def test_its_disk_cache_answers_only_where_it_could_write(rehearsal, monkeypatch, capsys):
    """In every run it searches, and then answers from disk, for the kernels of this run, too."""
    only(monkeypatch, GOOD, {**GOOD, "num_stages": 2})
    loads, original = [], AutotuneResult.load_from_disk.__func__

    def load(cls, path, compile_args):
        loads.append(original(cls, path, compile_args))
        return loads[-1]

    monkeypatch.setattr(AutotuneResult, "load_from_disk", classmethod(load))
    for _ in range(2):
        run_section("autotune", rehearsal)
        assert [result is not None for result in loads] == [False, True]
        assert "its disk cache answers in 0." in " ".join(capsys.readouterr().out.split())
        loads.clear()

    def full(self, path, verbose=False):
        raise OSError("No space left on device")

    monkeypatch.setattr(AutotuneResult, "_save_kernel_to_disk", full)
    run_section("autotune", rehearsal)
    assert "Its disk cache kept nothing of that." in " ".join(capsys.readouterr().out.split())


def test_nothing_is_left_after_the_filter(rehearsal, monkeypatch, capsys):
    only(monkeypatch, {**GOOD, "num_stages": 9}, {**GOOD, "num_stages": 10})
    with pytest.raises(Skip, match="left out: shared memory"):
        run_section("autotune", rehearsal)
    text = capsys.readouterr().out
    assert "288 KB    288 KB  left out: shared memory" in text


def test_a_flat_stage_sweep_is_explained(monkeypatch, capsys):
    only(monkeypatch, {**GOOD, "num_stages": 2}, {**GOOD, "num_stages": 0})
    monkeypatch.setattr(autotune, "tune", lambda page, configs, arguments: (
        page.build([(gemm.gemm, {**arguments, **configs[0]})])[0], configs[0], 1.0, 0.1))
    for arch, told in (("sm_75", 1), ("sm_80", 0)):
        run_section("autotune", rehearsal_device(arch))
        text = " ".join(capsys.readouterr().out.split())
        assert text.count(f"Expect little of num_stages on {arch}: it has no cp.async.") == told


@pytest.mark.parametrize("cores, quick, compiled, asked", [
    (2, False, 8, 2), (2, True, 2, 2), (8, False, 12, 5), (8, True, 4, 5),
])
def test_few_cores_compile_less(monkeypatch, capsys, cores, quick, compiled, asked):
    """On a T4; of what is compiled on two cores gemm's own ladder has compiled most."""
    t4 = Device("gpu", "sm_75", SHARED_BYTES["sm_75"], "Tesla T4", "sm_75", 40, int(15e9))
    page, jobs, sizes = Page(t4, quick), [], []

    def build(wanted):
        jobs.extend(arguments for _, arguments in wanted)
        return [RuntimeError("no GPU")] * len(jobs)

    monkeypatch.setattr(autotune, "cores", lambda: cores)
    monkeypatch.setattr(page, "build", build)
    monkeypatch.setattr(codegen, "generate", lambda *_, **arguments: sizes.append(arguments))
    monkeypatch.setattr(gemm, "inputs", lambda *_: (None, None))
    monkeypatch.setattr(gemm, "reference", lambda *_: None)
    with pytest.raises(Skip, match=r"did not compile \(RuntimeError: no GPU\), left out: shared "
                                   "memory, not tried"):
        autotune.run(page)
    assert (len(jobs), len(sizes)) == (compiled, asked)
    assert f"the first {compiled} are compiled" in " ".join(capsys.readouterr().out.split())
    ladder = [{**gemm.sizes(*[2048 if quick else 4096] * 3), **step.schedule}
              for step in gemm.choose_ladder(page)]
    if cores == 2:
        assert sum(job not in ladder for job in jobs) <= 4


@pytest.mark.gpu
def test_on_a_gpu(gpu, capsys):
    page = run_section("autotune", gpu)
    assert page.failures == []
    timed = events(page, "measurement")
    assert len(timed) >= autotune.budget(Page(gpu)) + 1
    winner = timed[-1]
    assert winner["variant"].startswith("tuned: ")
    assert winner["rivals"]["by hand"]["ratio"] >= 0.98
