"""What holds for any input: kernels in rehearsal, command lines, streams of events.

Examples are drawn by hypothesis, the same ones every time. Each example of a kernel is a compile.
"""

import contextlib
import io
import json
import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from sections import (
    ORDER,
    architectures,
    autotune,
    debugging,
    flash_attention,
    fused_epilogue,
    gemm,
    softmax,
    vector_add,
)
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device
from sections.common.verify import compare, unwritten_is_nan
from sections.course import Course
from sections.exercises import ORDER as EXERCISES
from sections.runner import arguments, results, summary
from sections.runner.arguments import Options, UsageError
from sections.runner.link import Ended, Stream
from sections.runner.screen import Screen
from sections.runner.tour import Tour
from tilelang_tour import main


def examples(count: int):
    """So many examples, always the same; a failing one is told as it is, not made smaller."""
    return settings(max_examples=count, derandomize=True, deadline=None,
                    phases=[Phase.explicit, Phase.generate],
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


# Kernels

dtypes = st.sampled_from([torch.float16, torch.float32])
seeds = st.integers(0, 1000)
sides = st.integers(1, 140)
products = st.fixed_dictionaries({
    "block_M": st.sampled_from([16, 32, 64, 128]), "block_N": st.sampled_from([16, 32, 64, 128]),
    "block_K": st.sampled_from([16, 32, 64]), "num_stages": st.integers(0, 4),
    "threads": st.sampled_from([32, 64, 128, 256]),
})
epilogues = st.fixed_dictionaries({
    "swizzle": st.sampled_from([0, 4, 8, 16]), "full_row": st.booleans(),
    "store_shared": st.booleans(),
})
schedules = st.builds(lambda a, b: {**a, **b}, products, epilogues)


def rehearsed(arch: str) -> Device:
    """The CPU as the device for an architecture, for asking it for schedules."""
    return Device("rehearsal", arch, SHARED_BYTES[arch])


# Where a section takes gemm's schedules from; all that gemm is run with anywhere in the tour.
SCHEDULES_OF = {
    "gemm": [step.schedule for ladder in gemm.LADDERS.values() for step in ladder],
    "autotune": [{**config, **autotune.fixed_part(rehearsed(arch))}
                 for arch in ARCHITECTURES for config in autotune.space(rehearsed(arch))],
    "architectures": [architectures.SAME, *map(architectures.best_schedule, ARCHITECTURES)],
}


def holds(device, kernel, sizes: dict, dtype, tensors, expected, **bounds) -> None:
    """Compile a kernel for the sizes, run it, and compare."""
    (built,) = build(device, [(kernel, {**sizes, "dtype": vector_add.tile_dtype(dtype)})])
    if isinstance(built, BaseException):
        raise built
    with unwritten_is_nan():
        actual = built(*tensors)
    found = compare(actual, expected, dtype, **bounds)
    assert found.passed, found.problem


def page_of(device):
    """As much of a page as the sections' inputs need."""
    return SimpleNamespace(device=device)


@examples(6)
@given(size=st.integers(1, 5000), block_N=st.sampled_from([128, 512, 1024, 2048]),
       threads=st.sampled_from([32, 128, 256]), dtype=dtypes, seed=seeds)
def test_vector_add(rehearsal, size, block_N, threads, dtype, seed):
    A, B = vector_add.inputs(page_of(rehearsal), size, dtype, seed)
    holds(rehearsal, vector_add.vector_add, {"N": size, "block_N": block_N, "threads": threads},
          dtype, (A, B), vector_add.reference(A, B))


def multiply(device, M, N, K, schedule, dtype, seed, kernel=gemm.gemm):
    A, B = gemm.inputs(page_of(device), M, N, K, seed, dtype)
    holds(device, kernel, {**gemm.sizes(M, N, K), **schedule}, dtype, (A, B),
          gemm.reference(A, B), reduction=K)


@examples(6)
@given(M=sides, N=sides, K=sides, schedule=schedules, dtype=dtypes, seed=seeds)
def test_gemm_with_any_schedule(rehearsal, M, N, K, schedule, dtype, seed):
    multiply(rehearsal, M, N, K, schedule, dtype, seed)


@pytest.mark.parametrize("section", SCHEDULES_OF)
@examples(3)
@given(data=st.data(), M=sides, N=sides, K=sides, dtype=dtypes, seed=seeds)
def test_gemm_with_a_section_s_schedules(rehearsal, section, data, M, N, K, dtype, seed):
    schedule = data.draw(st.sampled_from(SCHEDULES_OF[section]))
    kernel = gemm.gemm
    if section == "architectures":
        _, left_out, _ = data.draw(st.sampled_from(architectures.PATHS))
        kernel = architectures.with_settings(left_out)
    multiply(rehearsal, M, N, K, schedule, dtype, seed, kernel)


@examples(6)
@given(M=sides, N=sides, K=sides, tanh=st.booleans(), schedule=schedules, dtype=dtypes, seed=seeds)
def test_fused_epilogue(rehearsal, M, N, K, tanh, schedule, dtype, seed):
    exact = dtype == torch.float32  # 1 + erf cancels far from 0: an error by the row's size
    N = max(N, 32) if exact else N
    tensors = fused_epilogue.inputs(page_of(rehearsal), M, N, K, seed, dtype)
    kernel, sizes = fused_epilogue.job((M, N, K), tanh, schedule)
    holds(rehearsal, kernel, sizes, dtype, tensors, fused_epilogue.reference(*tensors, tanh),
          reduction=K, intermediate=dtype if exact else None)


@examples(5)
@given(rows=st.integers(1, 8), columns=st.integers(2, 5000), values=st.sampled_from([16, 32, 128]),
       odd=st.booleans(), dtype=dtypes, seed=seeds)
def test_softmax(rehearsal, rows, columns, values, odd, dtype, seed):
    draw = softmax.odd_rows if odd else lambda page, *rest: softmax.inputs(page, rows, *rest)
    X = draw(page_of(rehearsal), columns, seed, dtype)
    kernel, sizes = softmax.job(len(X), columns, {**softmax.SCHEDULE, "values": values})
    assert kernel is softmax.softmax
    holds(rehearsal, kernel, sizes, dtype, (X,), softmax.reference(X), reduction=columns)


@examples(5)
@given(rows=st.integers(1, 8), columns=st.integers(2, 5000), threads=st.sampled_from([128, 512]),
       kept=st.sampled_from([0, 4096, 8192]), odd=st.booleans(), dtype=dtypes, seed=seeds)
def test_online_softmax(rehearsal, rows, columns, threads, kept, odd, dtype, seed):
    draw = softmax.odd_rows if odd else lambda page, *rest: softmax.inputs(page, rows, *rest)
    X = draw(page_of(rehearsal), columns, seed, dtype)
    holds(rehearsal, softmax.online_softmax,
          {"M": len(X), "N": columns, "kept": kept, "threads": threads}, dtype, (X,),
          softmax.reference(X), reduction=columns)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@examples(4)
@given(batch=st.integers(1, 2), heads=st.integers(1, 2), queries=st.integers(1, 150),
       keys=st.integers(1, 150), size=st.sampled_from([32, 64, 96]),
       schedule=st.fixed_dictionaries({
           "block_M": st.sampled_from([32, 64, 128]), "block_N": st.sampled_from([32, 64]),
           "num_stages": st.integers(0, 3), "threads": st.sampled_from([128, 256, 384]),
           "fast_math": st.booleans(), "longest_first": st.booleans(),
           "store_shared": st.booleans()}),
       dtype=dtypes, seed=seeds)
def test_flash_attention(rehearsal, causal, batch, heads, queries, keys, size, schedule, dtype,
                         seed):
    case = flash_attention.Case(batch, heads, queries, size, causal, keys)
    tensors = flash_attention.inputs(page_of(rehearsal), case, seed, dtype)
    holds(rehearsal, flash_attention.flash_attention, {**case.arguments, **schedule}, dtype,
          tensors, flash_attention.reference(*tensors, case.scale, case.causal),
          reduction=case.keys, intermediate=dtype)


@examples(5)
@given(M=sides, N=sides, K=sides, schedule=products, dtype=dtypes, seed=seeds)
def test_the_mended_product(rehearsal, M, N, K, schedule, dtype, seed):
    multiply(rehearsal, M, N, K, schedule, dtype, seed, debugging.mended)


# Command lines

OPTIONS = [action for action in arguments.parser()._actions if action.option_strings]
names = st.sampled_from(ORDER)
pads = st.sampled_from(["", " ", "\t", "  "])
near = st.builds(lambda name, at, text: name[:at] + text + name[at + 1 :], names,
                 st.integers(0, 14), st.text(max_size=2))
lists = st.lists(names | near | pads, max_size=4).map(",".join)
paths = st.text(st.characters(exclude_characters="/~"), max_size=6) | st.sampled_from(
    ["", ".", "out.json", "no/such/out.json", "x" * 300, "a\0b", "\udcff", "\ud800", "~nosuch/a",
     "/proc/a", "reference"])
values = {action.option_strings[0]: paths for action in OPTIONS if action.nargs != 0} | {
    "--only": lists, "--skip": lists,
    "--timeout": st.floats().map(str) | st.integers().map(str) | st.sampled_from(["1e999", ""]),
    "--device": st.sampled_from(["auto", "cuda", "cpu", "CPU", "tpu", ""]),
    "--arch": st.sampled_from([*ARCHITECTURES, "sm_90", " SM_75 ", "sm_70", "75", ""]),
    "--exercise": st.sampled_from([*EXERCISES, "list", "List ", "hint", "2", ""]),
}
flags = st.sampled_from([name for action in OPTIONS for name in action.option_strings])
pairs = st.sampled_from(sorted(values)).flatmap(lambda option: st.one_of(
    st.tuples(st.just(option), values[option]),
    st.tuples(st.builds("{}={}".format, st.just(option), values[option]))))
words = st.lists(st.one_of(
    pairs, pairs, st.tuples(flags), st.tuples(flags.map(lambda name: name[:-1])),
    st.tuples(st.text(max_size=4) | st.sampled_from(["-", "--", "-1"]))), max_size=4,
).map(lambda found: [word for several in found for word in several])


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """An empty folder as the current one, for what a --results may name."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("away"))
    yield os.getcwd()
    os.chdir(before)


@examples(600)
@given(words=words)
def test_any_command_line_gives_options_or_one_message(away, words):
    begun = []

    def begin(*given):
        begun.extend(each for each in given if isinstance(each, Options))
        return 0

    with mock.patch("sections.runner.conduct.conduct", begin), \
            mock.patch("sections.runner.exercise.exercise", begin), \
            mock.patch("sections.runner.retell.retell", begin), \
            contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    text = out.getvalue()
    assert code in (0, 2) and "Traceback" not in text
    assert (code == 2) == text.startswith("tilelang_tour.py: ")
    assert code == 0 or not begun
    assert not [files for _, _, files in os.walk(away) if files], "a file was left behind"
    for found in begun:
        assert 0 < found.timeout < float("inf")
        assert found.names and list(found.names) == [n for n in ORDER if n in found.names]
        assert found.arch in (None, *ARCHITECTURES)
        assert found.results is None or os.path.isabs(found.results)


@examples(100)
@given(data=st.data(), only=st.lists(names, min_size=1, max_size=10), skip=st.lists(names))
def test_names_however_written_are_sections_in_the_tour_s_order(data, only, skip):
    def written(option, chosen):
        for name in chosen:
            spelled = data.draw(st.sampled_from([name, name.upper(), name.title()]))
            spelled = data.draw(pads) + spelled + data.draw(pads)
            yield from data.draw(st.sampled_from([[option, spelled], [f"{option}={spelled},"],
                                                  [option, f",{spelled},{spelled}"]]))

    line = [*written("--only", only), *written("--skip", skip)]
    expected = tuple(name for name in ORDER if name in only and name not in skip)
    if expected:
        assert arguments.parse(line, Course()).names == expected
    else:
        with pytest.raises(UsageError, match="nothing left to run; the sections are: vector_add"):
            arguments.parse(line, Course())


# Streams of events

TOKEN = "0123456789abcdef"
SECTIONS = ("passes", "slow", "passes_too")
ENDS = {"PASS": "", "SKIP": "needs sm_90a", "FAIL": "RuntimeError: upside down"}
WORSE = {"FAIL", "CRASH", "TIMEOUT", "NOT RUN"}


def marked(event: dict) -> bytes:
    return f"\x1e{TOKEN} {json.dumps(event)}\n".encode()


def told(name: str, status: str) -> list[bytes]:
    """All that a worker says of one section: pieces of its stream."""
    measurement = {"event": "measurement", "case": "1x1", "variant": "v", "ms": 0.25,
                   "baseline": "torch", "baseline_ms": 0.5, "ratio": 2.0, "ratio_low": 1.5,
                   "ratio_high": 2.5, "value": 9.0, "unit": "GB/s", "of_ceiling": 0.5}
    return [
        marked({"event": "section_start", "name": name}), f"\n[1/3] {name}\n".encode(),
        marked({"event": "progress", "text": "at work"}),
        marked({"event": "check", "case": "1x1", "rel_error": 1e-4, "bound": 1e-3,
                "passed": True}),
        marked({"event": "ceilings", "copy_GBps": 4000.0, "matmul_TFLOPs": 700.0}),
        marked(measurement), marked({**measurement, "event": "headline"}),
        marked({"event": "lesson", "text": "a lesson"}), b"the last words\n",
        marked({"event": "section_end", "name": name, "status": status, "note": ENDS[status],
                "seconds": 1.0, "compile_seconds": 0.5, "context_lost": False}),
    ]


def whole(statuses: dict, left) -> list[bytes]:
    """A worker's whole stream, in pieces: its sections and the end."""
    return [marked({"event": "ready"}),
            *(piece for name in left for piece in told(name, statuses[name])),
            marked({"event": "done"})]


class Told:
    """A worker that says some bytes, cut into chunks, and has ended."""

    def __init__(self, data: bytes, cuts=()):
        stream = Stream(TOKEN)
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        self.items = [item for a, b in zip(edges, edges[1:], strict=False)
                      for item in stream.feed(data[a:b])]
        self.items += [*stream.flush(), Ended(0)]

    def poll(self, seconds):
        items, self.items = self.items, []
        return items

    def stop(self):
        pass


def tour_of(statuses: dict, data: bytes, cuts=()) -> tuple[dict, str]:
    """What a tour makes of a first worker's bytes, later ones being in order.

    Returns its sections as the results file has them, and all that it printed.
    """
    first = [Told(data, cuts)]

    def worker(self, left):
        return first.pop() if first else Told(b"".join(whole(statuses, left)))

    with mock.patch.object(Tour, "_worker", worker), \
            contextlib.redirect_stdout(io.StringIO()) as out:
        record = Tour(Course("tests.fake_course", False), Options(names=SECTIONS), {},
                      Screen()).run()
        for timed in (True, False):
            print(summary.table(record, timed), *summary.notes(record), summary.verdict(record))
        found = results.as_dict(record, {"mode": None})
    json.dumps(found, allow_nan=False)
    assert found["exit_code"] in (0, 1)
    rows = {row["name"]: row for row in found["sections"]}
    assert tuple(rows) == SECTIONS
    return rows, out.getvalue()


def without_seconds(rows: dict) -> dict:
    return {name: {**row, "seconds": None} for name, row in rows.items()}


statuses_of = st.fixed_dictionaries({name: st.sampled_from(list(ENDS)) for name in SECTIONS})
cuts = st.lists(st.integers(0, 10_000), max_size=8)
end = {"event": "section_end", "name": "slow", "status": "PASS", "note": "forged", "seconds": 0.0,
       "compile_seconds": 0.0, "context_lost": False}
forgeries = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([end, {"event": "done"}, {"event": "section_start", "name": "passes_too"}])
    .flatmap(lambda event: st.sampled_from([
        json.dumps(event).encode(), f"\x1e{TOKEN[::-1]} {json.dumps(event)}\n".encode(),
        f"\x1e {json.dumps(event)}\n".encode(), f"{TOKEN} {json.dumps(event)}\n".encode(),
        f"\x1e{TOKEN[:-1]}".encode(), b"\x1e", b"\n"])),
)


@examples(100)
@given(statuses=statuses_of, cuts=cuts,
       prints=st.lists(st.tuples(st.integers(1, 31), forgeries), max_size=6))
def test_what_a_section_prints_changes_no_verdict(statuses, cuts, prints):
    pieces = whole(statuses, SECTIONS)
    expected, _ = tour_of(statuses, b"".join(pieces))
    for place, text in sorted(prints, reverse=True, key=lambda each: each[0]):
        pieces.insert(min(place, len(pieces)), text)
    rows, _ = tour_of(statuses, b"".join(pieces), cuts)
    assert without_seconds(rows) == without_seconds(expected)
    assert {name: row["status"] for name, row in rows.items()} == statuses


def lost(place: int) -> tuple:
    """The damage that a piece of the stream never came."""
    return "lose", place, 0, b"", 1


WORD = marked({"event": "progress", "text": "in between"})
# In the stream `ready` is piece 0, a section's start is piece 1, 11, 21, its end 10 pieces on.
IN_THE_NAME = len(marked({"event": "section_start", "name": ""})) - len(b'"}\n')
IN_THE_STATUS = len(marked({"event": "section_end", "name": "slow", "status": ""})) - len(b'"}\n')


@example(statuses=dict(zip(SECTIONS, ("FAIL", "PASS", "PASS"), strict=True)), cuts=[],
         damages=[lost(10), lost(10)])  # the end of one section, and the start of the next
@example(statuses=dict.fromkeys(SECTIONS, "PASS"), cuts=[],
         damages=[("garble", 11, IN_THE_NAME, b"x", 1)])
@example(statuses=dict.fromkeys(SECTIONS, "FAIL"), cuts=[],
         damages=[("garble", 20, IN_THE_STATUS, b"x", 1)])
@examples(300)
@given(statuses=statuses_of, cuts=cuts, damages=st.lists(
    st.tuples(st.sampled_from(["lose", "twice", "swap", "tear", "garble", "cut", "end"]),
              st.integers(0, 31), st.integers(0, 400),
              st.binary(max_size=4) | st.sampled_from([b"x", b"\n", b"\x1e", b'"', WORD]),
              st.integers(1, 60)),
    min_size=1, max_size=4))
def test_a_stream_that_is_damaged_makes_nothing_better(statuses, cuts, damages):
    pieces = whole(statuses, SECTIONS)
    for what, place, at, text, length in damages:
        place %= len(pieces)
        piece = pieces[place]
        at %= len(piece) + 1
        pieces[place : place + 1] = {
            "lose": [], "twice": [piece, piece], "swap": [pieces[place - 1], piece],
            "tear": [piece[:at]], "garble": [piece[:at] + text + piece[at:]],
            "cut": [piece[:at] + piece[at + length :]], "end": [piece],
        }[what]
        if what == "end":
            del pieces[place + 1 :]
        pieces = pieces or [b""]
    rows, text = tour_of(statuses, b"".join(pieces), cuts)
    for name, row in rows.items():
        assert row["status"] in {statuses[name], *WORSE}, "damage is no reason to pass"
        assert row["status"] in ("PASS", "SKIP") or row["note"], f"{name}: {row['status']}, no word"
