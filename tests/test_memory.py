"""Out of memory is one section's failure, told with the figures; the next one has it all back."""

import os
import textwrap
import time

import pytest

from sections.common.errors import root_cause
from sections.runner import link
from sections.runner.link import Ended

# How a section may fail while it holds `kept`, a tensor: what it does with it, and the error.
WAYS = {
    "plain": "raise RuntimeError('no room')",
    "caught": """
        errors = []
        try:
            raise RuntimeError("no room")
        except RuntimeError as error:
            errors.append(error)  # a circle: error, its frame, this list
            raise
    """,
    "chained": """
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise RuntimeError("no room, either") from error
    """,
    "closure": """
        page.check("a case", lambda: kept * 1, (), kept, kept.dtype)  # the page keeps the lambda
        raise RuntimeError("no room")
    """,
    "exit": "raise SystemExit('no room')",
    "passes": "page.kept = kept",
}
HOLDS = """
    import weakref
    import torch

    def run(page):
        global seen
        kept = torch.ones(1000)
        seen = weakref.ref(kept)
        {way}
"""
LOOKS = """
    def run(page):
        from course.{name} import seen
        if seen() is not None:
            raise RuntimeError("the tensor is still there")
"""
GREEDY = """
    import torch

    def run(page):
        kept = []
        while True:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
"""
MODEST = """
    import torch
    from sections import vector_add

    def run(page):
        free, total = torch.cuda.mem_get_info()
        if free < 0.9 * page.device.memory_bytes:
            raise RuntimeError(f"only {free} of {page.device.memory_bytes} bytes are back")
        vector_add.run(page)
"""


@pytest.fixture
def ends(tmp_path):
    """Runs made sections in one real worker; how each of them ended, by name."""
    def run(sections: dict[str, str], **options) -> dict[str, dict]:
        (tmp_path / "course").mkdir()
        for name, text in {"__init__": f"ORDER = {tuple(sections)}", **sections}.items():
            (tmp_path / "course" / f"{name}.py").write_text(textwrap.dedent(text))
        job = {"package": "course", "needs_tilelang": False, "sections": list(sections),
               "positions": dict.fromkeys(sections, 1), "total": len(sections), "device": "cpu",
               "arch": None, "quick": True, "ahead": False, "ceilings": {}, **options}
        worker = link.Worker(job, str(tmp_path), {**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])})
        items, deadline = [], time.monotonic() + 300
        try:
            while not any(isinstance(item, Ended) for item in items):
                assert time.monotonic() < deadline, items
                items += worker.poll(0.5)
        finally:
            worker.stop()
        found = {item["name"]: item for item in items
                 if isinstance(item, dict) and item["event"] == "section_end"}
        assert found.keys() == sections.keys(), items
        return found
    return run


def test_a_section_that_failed_keeps_no_tensor(ends):
    sections = {}
    for name, way in WAYS.items():
        way = textwrap.indent(textwrap.dedent(way).strip(), " " * 8).strip()
        sections[name] = HOLDS.format(way=way)
        sections[f"after_{name}"] = LOOKS.format(name=name)
    found = ends(sections)
    for name in WAYS:
        assert found[name]["status"] == ("PASS" if name == "passes" else "FAIL")
        assert (found[f"after_{name}"]["status"], found[f"after_{name}"]["note"]) == ("PASS", "")


@pytest.mark.parametrize("needed, free", [("2.00 GiB", "1.02 GiB"), ("20.00 MiB", "512.00 KiB")])
def test_the_note_has_the_figures(needed, free):
    text = (f"CUDA out of memory. Tried to allocate {needed}. GPU 0 has a total capacity of "
            f"14.74 GiB of which {free} is free. Process 4242 has 9.10 GiB memory in use. "
            "Including non-PyTorch memory, this process has 4.60 GiB memory in use. Of the "
            "allocated memory 4.40 GiB is allocated by PyTorch, and 98.00 MiB is reserved by "
            "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.")
    import torch

    assert root_cause(torch.cuda.OutOfMemoryError(text)) == (
        f"OutOfMemoryError: CUDA out of memory: {needed} needed, {free} of 14.74 GiB free")


@pytest.mark.gpu
def test_a_section_that_fills_the_gpu_fails_and_the_next_one_passes(ends):
    found = ends({"greedy": GREEDY, "modest": MODEST}, needs_tilelang=True, device="cuda")
    assert found["greedy"]["status"] == "FAIL"
    note = found["greedy"]["note"]
    assert "OutOfMemoryError: CUDA out of memory: 1024.00 MiB needed, " in note or (
        "OutOfMemoryError: CUDA out of memory: 1.00 GiB needed, " in note), note
    assert " GiB free" in note
    assert found["modest"]["status"] == "PASS", found["modest"]["note"]
    assert not found["greedy"]["context_lost"]
