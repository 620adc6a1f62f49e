"""Fixtures that sections' tests share, and the suite's last word about faults."""

import pytest

from tests.mutations import rehearsal_device


@pytest.fixture(scope="session")
def rehearsal():
    """The CPU as the device, for reading sm_90a."""
    return rehearsal_device()


@pytest.fixture(scope="session")
def gpu():
    """The GPU as the device; where there is none, a test that asks for it fails."""
    from sections.common.device import select
    from sections.common.start import prepare

    device = select("cuda")
    prepare(device)
    return device


def pytest_terminal_summary(terminalreporter):
    """How many faults were injected, and how many of them the tour survived.

    A test whose name begins with test_a_fault injects one, or as many as its property "faults"
    says.
    """
    faults = {
        outcome: sum(
            dict(report.user_properties).get("faults", 1)
            for report in terminalreporter.getreports(outcome)
            if "::test_a_fault" in report.nodeid
        )
        for outcome in ("passed", "failed", "error")
    }
    if injected := sum(faults.values()):
        terminalreporter.write_line(f"faults injected: {injected}, survived: {faults['passed']}")
