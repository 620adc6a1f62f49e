"""Two runs side by side: what differs around them, and every time that both have."""

import textwrap

from sections.common.table import format_table
from sections.runner.results import bests, place, timed

NOISE = 0.01  # two runs of one program on one machine differ by as much
BEST = "the best of each"


def compare(mine: dict, other: dict, name: str) -> str:
    """This run (`mine`) against the one in the results file `name` (`other`), as text."""
    heading = f"Comparison: this run on {place(mine)}, the other on {place(other)} ({name})"
    cases = common(mine, other)
    ratios = table(cases) if cases else nothing(mine, other)
    return "\n\n".join([heading, differences(mine, other), ratios])


def differences(mine: dict, other: dict) -> str:
    """Environments, ceilings and statuses: a table of what differs."""

    def facts(found: dict) -> dict:
        copy, matmul = found["ceilings"].values()
        return {
            "mode": found["mode"],
            **found["environment"],
            "copy ceiling": copy and f"{copy:.0f} GB/s",
            "matmul ceiling": matmul and f"{matmul:.0f} TFLOP/s",
        }

    def statuses(found: dict) -> dict:
        return {section["name"]: section["status"] for section in found["sections"]}

    a, b = facts(mine), facts(other)
    rows = [[name, a.get(name), b.get(name)] for name in {**a, **b} if a.get(name) != b.get(name)]
    a, b = statuses(mine), statuses(other)
    rows += [[name, a[name], b[name]] for name in a if name in b and a[name] != b[name]]
    if not rows:
        return "Around them nothing differs: the same GPU, the same versions."
    return format_table(["", "this run", "the other"], rows)


def common(mine: dict, other: dict) -> dict[tuple, list[tuple]]:
    """{(section, case): [(variant, my measurement, the other's)]} of all that both timed.

    Where the best variants of a case differ, they are a pair as well.
    """
    cases: dict[tuple, list] = {key(section, entry)[:2]: [] for section, entry in timed(mine)}
    theirs = {(*key(section, entry), entry["variant"]): entry for section, entry in timed(other)}
    for section, entry in timed(mine):
        match = theirs.get((*key(section, entry), entry["variant"]))
        if match:
            cases[key(section, entry)[:2]].append((entry["variant"], entry, match))
    best = {key(section, entry): entry for section, entries in bests(other) for entry in entries}
    for section, entries in bests(mine):
        for entry in entries:
            match = best.get(key(section, entry))
            if match and match["variant"] != entry["variant"]:
                cases[key(section, entry)[:2]].append((BEST, entry, match))
    return {case: pairs for case, pairs in cases.items() if pairs}


def key(section: str, entry: dict) -> tuple:
    """What makes measurements comparable: of the baseline "SDPA (cuDNN)" only SDPA counts."""
    return section, entry["case"], entry["baseline"].partition(" (")[0]


def table(cases: dict[tuple, list[tuple]]) -> str:
    """All that both runs timed, a row a baseline, and how to read it."""
    headers = ["", "ms", "its ms", "faster", "against", "ratio", "its ratio", "changed"]
    rows, changes = [], []
    for (section, case), pairs in cases.items():
        rows.append([f"{section}: {case}"] + [""] * 7)
        above = None
        for variant, a, b in pairs:
            first = [""] * 4
            if variant != above:
                *lines, last = textwrap.wrap(step(above, variant), 46) or ["?"]
                rows += [[line] + [""] * 7 for line in lines]
                first = [last, f"{a['ms']:.3f}", f"{b['ms']:.3f}", f"{b['ms'] / a['ms']:.2f}x"]
            changes.append(change(a, b))
            rows.append([*first, a["baseline"].partition(" (")[0], f"{a['ratio']:.2f}x",
                         f"{b['ratio']:.2f}x", changes[-1]])
            above = variant
    better, worse = changes.count("better"), changes.count("worse")
    return f"""{format_table(headers, rows, right=(*headers[1:4], *headers[5:7]))}

its: the other run's. faster: its ms / ms, above 1 this run is faster. ratio: baseline's time /
kernel's time. changed: the spreads of both ratios do not overlap, and the ratios are more than
{100 * NOISE:.0f} per cent apart. A row that begins with + names what is new since the row above.
Against their baselines {better} stand better, {worse} worse, {changes.count("")} as they did."""


def change(a: dict, b: dict) -> str:
    """ "better" or "worse" where mine (a) stands differently against its baseline than b does."""
    if abs(a["ratio"] / b["ratio"] - 1) > NOISE:
        if a["ratio_low"] > b["ratio_high"]:
            return "better"
        if a["ratio_high"] < b["ratio_low"]:
            return "worse"
    return ""


def step(above: str | None, variant: str) -> str:
    """A schedule in words, or what is new in it: "+ 3 stages", "+ no swizzle=16".

    Another kernel, named first, and another setting, before a colon, are told whole, unless nothing
    else differs.
    """
    if above in (None, BEST) or variant == BEST:
        return variant
    (old_head, _, old), (head, _, new) = above.rpartition(": "), variant.rpartition(": ")
    if old_head != head:
        return f"+ {head}" if head and old == new else variant
    old, new = old.split(", "), new.split(", ")
    if kind(new[0]) not in map(kind, old):
        return variant
    gained = [word for word in new if word not in old]
    kinds = {kind(word) for word in gained}
    lost = [f"no {word}" for word in old if word not in new and kind(word) not in kinds]
    return "+ " + ", ".join(gained + lost)


def kind(word: str) -> str:
    """What a word of a schedule is about: the same for "3 stages" and "1 stage"."""
    return "".join(letter for letter in word if not letter.isdigit()).rstrip("s")


def nothing(mine: dict, other: dict) -> str:
    """Why there is no table."""
    runs = (("this run", mine), ("the other", other))
    untimed = " and ".join(name for name, found in runs if not timed(found))
    why = f": {untimed} timed nothing" if untimed else ""
    return f"The two runs have no measurement in common{why}."
