"""What a check must catch: results made wrong in the ways in which kernels go wrong."""

import importlib

import torch

from sections.common.device import Device, select
from sections.common.page import Page
from sections.common.start import prepare


def zeros(result):
    """A kernel that never wrote anything."""
    return torch.zeros_like(result)


def lost_last(result):
    """A tail that no block covers: the last row, or the last element of a vector, is missing."""
    wrong = result.clone()
    wrong[-1] = 0
    return wrong


def lost_last_column(result):
    """A tail that no block covers along the last dimension."""
    wrong = result.clone()
    wrong[..., -1] = 0
    return wrong


def one_nan(result):
    """One element that was divided by zero."""
    wrong = result.clone()
    wrong.view(-1)[wrong.numel() // 2] = float("nan")
    return wrong


def transposed(result):
    """Rows and columns swapped."""
    return result.transpose(-1, -2).contiguous()


def scaled(result):
    """One per cent too much, as from a constant that is slightly off."""
    return result * 1.01


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (zeros, lost_last, lost_last_column, one_nan, transposed, scaled)
}


class MutatedPage(Page):
    """A page that makes every kernel's result wrong before it is checked."""

    def __init__(self, *arguments, mutate=None, **options):
        super().__init__(*arguments, **options)
        self.mutate = mutate

    def call(self, kernel, inputs):
        result = super().call(kernel, inputs)
        return self.mutate(result) if self.mutate else result


def rehearsal_device(arch: str | None = None) -> Device:
    """The CPU, TileLang told so."""
    device = select("cpu", arch)
    prepare(device)
    return device


def run_section(name: str, device: Device, mutate=None, quick: bool = False, overrides=None):
    """Run a section on a page whose events are kept; returns the page.

    page.failures   what made it FAIL, empty for PASS
    page.events     what it told the runner
    """
    events: list[dict] = []
    page = MutatedPage(device, quick, overrides, emit=events.append, mutate=mutate)
    page.events = events
    importlib.import_module(f"sections.{name}").run(page)
    page.close()
    return page


def events(page, kind: str) -> list[dict]:
    """The events of one kind that a section emitted."""
    return [event for event in page.events if event["event"] == kind]
