"""Sections do not lean on each other: in order and in reverse they come to the same verdicts."""

from sections import ORDER
from tests.mutations import events, run_section


def verdicts(names, device) -> dict:
    """Every section's checks, run one after the other in this process."""
    found = {}
    for name in names:
        page = run_section(name, device, quick=True)
        assert page.failures == [], name
        found[name] = [(check["case"], check["passed"]) for check in events(page, "check")]
    return found


def test_in_order_and_in_reverse(rehearsal, capsys):
    forwards = verdicts(ORDER, rehearsal)
    assert verdicts(reversed(ORDER), rehearsal) == forwards
    assert all(forwards.values()), "every section checks something"
