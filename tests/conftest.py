"""Fixtures that sections' tests share."""

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
