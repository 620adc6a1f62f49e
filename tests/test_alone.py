"""One section by itself: what a learner types behind `python -m sections.<name>`."""

import pytest

from sections.common.alone import run_alone


@pytest.mark.parametrize("name", ["autotune", "architectures"])
def test_values_for_a_section_without_a_schedule_of_its_own_are_refused(name, capsys):
    """The tuner chooses them itself: given by hand it would tune nothing and know no latency."""
    code = run_alone(f"sections/{name}.py", ["--device", "cpu", "--quick", "num_stages=2"])
    assert (code, capsys.readouterr().err) == (
        2, "unknown name num_stages; this section has: no values to change\n"
    )


@pytest.mark.parametrize("arguments, message", [
    (["num_stages"], "num_stages: not understood"),
    (["num_stages=two"], "num_stages=two: the value must be a number or True/False"),
    (["--device", "gpu"], "--device gpu: one of auto, cuda, cpu"),
    (["--arch", "sm_42"], "sm_42: no such architecture; one of: sm_75"),
    (["--device"], "--device needs a value"),
])
def test_a_wrong_word_is_exit_2_and_the_usage(arguments, message, capsys):
    assert run_alone("sections/gemm.py", arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert "usage: python -m sections.gemm [--quick]" in told
