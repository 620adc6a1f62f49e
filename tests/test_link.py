"""The link to the worker: one stream, split into text and events, whole and in order."""

import json
import math
import os
import subprocess
import sys
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sections.common.processes import RUN_VARIABLE, kill_run, marked
from sections.runner import link
from sections.runner.link import Ended, Stream, worker_environment
from tests.command import wait_until

TOKEN = "0123456789abcdef"
MARKER = f"\x1e{TOKEN} ".encode()


def event_line(event: dict) -> bytes:
    return MARKER + json.dumps(event).encode() + b"\n"


def feed(*chunks: bytes) -> list:
    """What a stream makes of chunks; neighbouring texts are joined."""
    stream = Stream(TOKEN)
    items = [item for chunk in chunks for item in stream.feed(chunk)] + stream.flush()
    return joined(items)


def joined(items: list) -> list:
    result = []
    for item in items:
        if isinstance(item, str) and result and isinstance(result[-1], str):
            result[-1] += item
        elif item != "":
            result.append(item)
    return result


def one_by_one(data: bytes) -> list[bytes]:
    return [data[n : n + 1] for n in range(len(data))]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["\x1e", f"\x1e{TOKEN}", f"\x1e{TOKEN[:5]}", "\n", '{"event": "forged"}\n', "\x1e\x1e"]
)
numbers = st.integers() | st.floats(allow_nan=False)
events = st.builds(
    lambda kind, more: {**more, "event": kind},
    st.sampled_from(["check", "section_end"]),
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | numbers | st.none(), max_size=3),
)


@given(st.lists(texts | events, max_size=8), st.data())
def test_whatever_the_chunks_text_and_events_come_out_whole_and_in_order(items, data):
    assume(not any(MARKER.decode() in item for item in joined(items) if isinstance(item, str)))
    stream = b"".join(
        item.encode() if isinstance(item, str) else event_line(item) for item in items
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert feed(*chunks) == joined(items)
    assert feed(*one_by_one(stream)) == joined(items)


def test_an_event_may_begin_anywhere_in_a_line_and_leaves_no_trace():
    data = b"half" + event_line({"event": "a"}) + b" a line\n"
    assert feed(data) == ["half", {"event": "a"}, " a line\n"]


@pytest.mark.parametrize("garbled", [
    b"no json\n", b"[1, 2]\n", b"{}\n", b'{"event": 3}\n', b'{"event": "a"\n', b"\xff\xfe\n", b"\n",
    b"[" * 100_000 + b"\n",
])
def test_a_garbled_event_is_text_and_the_next_one_counts(garbled):
    data = b"before\n" + MARKER + garbled + event_line({"event": "b"})
    assert feed(data) == ["before\n" + garbled.decode("utf-8", "replace"), {"event": "b"}]


def test_an_event_torn_by_another_is_text_and_the_other_counts():
    data = MARKER + b'{"event": "a", ' + event_line({"event": "b"}) + b"after\n"
    assert feed(data) == ['{"event": "a", ', {"event": "b"}, "after\n"]
    assert feed(*one_by_one(data)) == ['{"event": "a", ', {"event": "b"}, "after\n"]


def test_an_event_torn_by_the_end_is_text():
    assert feed(b"text" + MARKER + b'{"event": "a"') == ['text{"event": "a"']
    assert feed(b"text" + MARKER[:-1]) == ["text" + MARKER[:-1].decode()]


def test_a_forged_marker_is_text():
    forged = f'\x1e{TOKEN[::-1]} {{"event": "section_end"}}\n'
    assert feed(forged.encode()) == [forged]
    assert feed(*one_by_one(forged.encode())) == [forged]


def test_text_is_not_held_back_and_characters_are_not_split():
    stream = Stream(TOKEN)
    assert stream.feed("50 % \N{SNOWMAN}".encode()[:-1]) == ["50 % "]
    assert stream.feed("\N{SNOWMAN}".encode()[-1:]) == ["\N{SNOWMAN}"]
    assert stream.feed(b"\xe2\x98") == []
    assert stream.flush() == ["\N{REPLACEMENT CHARACTER}"]


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(link, "LARGEST_EVENT", 1000)
    next_one = {"event": "b"}
    assert feed(MARKER + b"x" * 5000, event_line(next_one)) == ["x" * 5000 + "\n", next_one]


def test_numbers_that_are_not_finite_pass():
    (item,) = feed(event_line({"event": "check", "rel_error": math.nan, "bound": math.inf}))
    assert math.isnan(item["rel_error"]) and item["bound"] == math.inf


@pytest.mark.parametrize("code, how, sentence", [
    (3, "ended with code 3", "the process ended with code 3"),
    (-11, "killed by SIGSEGV", "the process was killed by SIGSEGV"),
    (-99, "killed by signal 99", "the process was killed by signal 99"),
])
def test_how_a_process_ended_in_words(code, how, sentence):
    assert (Ended(code).how, Ended(code).sentence) == (how, sentence)


def test_the_worker_s_environment():
    given = {"PYTHONOPTIMIZE": "2", "PYTHONPATH": "/mine", "PYTHONIOENCODING": "ascii", "A": "b"}
    environment = worker_environment(given, "run1")
    assert "PYTHONOPTIMIZE" not in environment and environment["A"] == "b"
    assert environment["PYTHONPATH"] == "/mine"
    assert environment["PYTHONIOENCODING"].startswith("utf-8")
    assert environment[RUN_VARIABLE] == "run1"
    assert given["PYTHONOPTIMIZE"] == "2"


def test_only_the_marked_processes_are_killed():
    def sleeper(run: str) -> subprocess.Popen:
        return subprocess.Popen(["sleep", "100"], env={**os.environ, RUN_VARIABLE: run},
                                start_new_session=True)

    mine, other = sleeper("test-link-1"), sleeper("test-link-11")
    try:
        assert marked("test-link-1") == [mine.pid]
        kill_run("test-link-1")
        assert mine.wait(5) == -9 and other.poll() is None
    finally:
        mine.kill(), other.kill()
        mine.wait(), other.wait()


def test_a_worker_whose_runner_died_before_it_told_the_job_goes_too(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", link.start_code("sections")],
        stdin=subprocess.DEVNULL, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, env=worker_environment(dict(os.environ), "test-link-orphan"))
    assert b"JSONDecodeError" in process.communicate(timeout=20)[1]  # there was no job
    assert wait_until(lambda: not marked("test-link-orphan"), 2)


def test_a_worker_without_sections_is_ready_and_done_and_leaves_nothing(tmp_path):
    job = {"package": "tests.fake_course", "needs_tilelang": False, "sections": [], "positions": {},
           "total": 0, "device": "cpu", "arch": None, "quick": False, "ahead": True, "ceilings": {}}
    started = link.Worker(job, str(tmp_path), dict(os.environ))
    pid = started._process.pid
    items, deadline = [], time.monotonic() + 20
    while not any(isinstance(item, Ended) for item in items) and time.monotonic() < deadline:
        items += started.poll(0.1)
    assert [item["event"] for item in items if isinstance(item, dict)] == ["ready", "done"]
    assert items[-1] == Ended(0)
    started.stop()
    assert marked(started._run) == [] and not os.path.exists(f"/proc/{pid}")
