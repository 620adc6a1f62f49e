"""The pictures of a run: what each one says, that nothing is cut off, what is left out and why."""

import builtins
import os
import struct
import subprocess
import sys

import pytest

from sections.runner import pictures
from sections.runner.pictures import DOTS, MARKERS, PICTURES, WIDTH, NothingToDraw, work
from tests.command import ROOT
from tests.made_results import made

NAMES = [picture.__name__ for picture in PICTURES]
DRAWN_IN_REHEARSAL = ["epilogue_ledger", "fragment", "swizzle"]


def title(name: str, found: dict) -> str:
    """What stands above a picture, on one line."""
    return " ".join(getattr(pictures, name)(found).get_suptitle().split())


def section(found: dict, name: str) -> dict:
    return next(each for each in found["sections"] if each["name"] == name)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder with all pictures of the made run, and what was told."""
    folder = tmp_path_factory.mktemp("pictures") / "new" / "folder"
    return folder, pictures.draw(made(), str(folder))


# The files


def test_all_are_drawn_twice_and_told(drawn):
    folder, told = drawn
    names = sorted(f"{name}.{kind}" for name in NAMES for kind in ("png", "svg"))
    assert sorted(path.name for path in folder.iterdir()) == names
    assert " ".join(" ".join(told).split()) == \
        f"pictures, .png and .svg, in {folder}: {', '.join(NAMES)}"


def test_as_wide_as_a_cell_in_colab(drawn):
    for name in NAMES:
        data = (drawn[0] / f"{name}.png").read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and width == int(WIDTH * DOTS) and height < width
        assert 900 < width < 1100


def test_the_same_run_gives_the_same_file(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PICTURES", (pictures.swizzle,))
    pictures.draw(made(), str(tmp_path))
    assert (tmp_path / "swizzle.svg").read_bytes() == (drawn[0] / "swizzle.svg").read_bytes()


# Legible


def words(figure) -> list:
    """Everything written in a figure but the numbers at ticks."""
    found, legends = list(figure.texts), list(figure.legends)
    for axes in figure.axes:
        for part in (axes, *axes.child_axes):
            found += [*part.texts, part.title, part._left_title, part.xaxis.label, part.yaxis.label]
            legends += [part.get_legend()] if part.get_legend() else []
    found += [text for legend in legends for text in legend.get_texts()]
    return [text for text in found if text.get_text()]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_cut_off_or_tiny_or_covered(name):
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with rc_context(pictures.STYLE):
        figure = getattr(pictures, name)(made())
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        whole = figure.get_tightbbox(canvas.get_renderer())
    inches = figure.get_size_inches()
    assert whole.x0 > -0.01 and whole.y0 > -0.01
    assert whole.x1 < inches[0] + 0.01 and whole.y1 < inches[1] + 0.01
    texts = words(figure)
    assert len(texts) > 5 and min(text.get_fontsize() for text in texts) >= 9
    boxes = [text.get_window_extent().padded(-1) for text in texts]
    for n, box in enumerate(boxes):
        covered = [texts[m].get_text() for m in range(n) if box.overlaps(boxes[m])]
        assert not covered, (texts[n].get_text(), covered)


def test_colour_is_never_alone():
    assert len(set(MARKERS)) == len(set(MARKERS.values())) == 7


# The findings


def test_kernels_counts_those_that_are_as_fast():
    assert title("kernels", made()) == ("NVIDIA H200: 6 of 10 kernels are at least as fast as the "
                                        "strongest that PyTorch has for the same work")
    found = made("arch", arch="sm_75")
    for entry in section(found, "vector_add")["measurements"]:
        entry["ratio"] = 0.99
    assert title("kernels", found).startswith("sm_75 code on NVIDIA H200: 5 of 10 kernels")


def test_roofline_tells_how_near_the_roof_is():
    found = made()
    assert title("roofline", found) == ("10 kernels under the roof of NVIDIA H200: half of them "
                                        "reach 87 % of it or more, the lowest 43 %")
    found["ceilings"]["matmul_TFLOPs"] *= 2  # a higher roof
    assert "half of them reach 43 % of it or more, the lowest 23 %" in title("roofline", found)


@pytest.mark.parametrize("case, unit, value, expected", [
    ("1000 float32", "GB/s", 12.0, (1000, 12000)),
    ("10x100 float16", "GB/s", 4.0, (5000, 4000)),
    ("20x30x40 float16 erf", "TFLOP/s", 0.048, (48000, 2 * (20 * 40 + 40 * 30 + 20 * 30))),
    ("2x3x50x64 bfloat16 causal", "TFLOP/s", 0.2, (200000, 2 * 4 * 2 * 3 * 50 * 64)),
    ("20x30x40 float16", "GB/s", 1.0, None),
    ("1000 float32", "TFLOP/s", 1.0, None),
    ("", "GB/s", 1.0, None),
    ("odd rows of 10x100 float16", "GB/s", 1.0, None),
    ("1000 int8", "GB/s", 1.0, None),
])
def test_work_from_a_case(case, unit, value, expected):
    found = work({"case": case, "unit": unit, "value": value, "ms": 1e-3})
    assert found == (expected and pytest.approx(expected))


def test_ladders_name_the_ends_and_the_largest_step():
    assert title("gemm_ladder", made()) == (
        "GEMM on NVIDIA H200: 5 schedules, from 0.30x to 0.99x cuBLAS; the largest "
        "step, \"3 stages\", makes it 1.67x as fast")
    assert title("attention_ladder", made()) == (
        "Attention on NVIDIA H200: 4 schedules, from 0.52x to 0.97x SDPA; the largest "
        "step, \"192x128, 384 threads\", makes it 1.32x as fast")


def test_autotune_marks_the_tuners_choice():
    found = made()
    assert title("autotune", found) == (
        "On NVIDIA H200 the tuner's choice of 6, 128x256x64, 4 stages, 256 threads, swizzle=16, "
        "takes 0.200 ms; the slowest takes 1.9x as long")
    *_, tuned = section(found, "autotune")["measurements"]
    tuned["variant"] = "tuned: 256x128x64, 3 stages, 256 threads, swizzle=16"
    assert "of 6, 256x128x64, 3 stages" in title("autotune", found)
    tuned["variant"] = "tuned: what is not in the table"
    assert "of 6, 128x256x64, 4 stages" in title("autotune", found), "the best of them"


def test_the_ledger_gives_bytes_and_what_they_cost():
    assert title("epilogue_ledger", made()) == (
        "Bias and GELU as kernels of their own move 186 MB instead of 51 MB for 16384x1024x512 "
        "float16, and take 1.90x the time on NVIDIA H200")
    assert title("epilogue_ledger", made("rehearsal")).endswith("for 16384x1024x512 float16")


def test_the_layouts_tell_what_they_mean():
    assert title("fragment", made()) == (
        "C_local on sm_90a: each of 128 threads holds 32 of 64 x 64 values, and a row lies in 4 "
        "threads, so its maximum has to cross them")
    assert title("swizzle", made()) == (
        "B_shared on sm_90a: swizzled, the first pieces of 8 rows lie in 8 groups of banks instead "
        "of 1, and are read in 1 turn instead of 8")
    found = made()
    layout = section(found, "debugging")["data"]["swizzle"]
    layout.update(row_bytes=64, pieces=["0 1 2 3", "4 5 6 7", "9 8 11 10", "13 12 15 14",
                                        "18 19 16 17", "22 23 20 21", "27 26 25 24", "31 30 29 28"])
    assert "lie in 8 groups of banks instead of 2, and are read in 1 turn instead of 4" in \
        title("swizzle", found)


# What is not there


def test_a_rehearsal_draws_what_it_has(tmp_path):
    (tmp_path / "kernels.png").write_text("of an earlier run")
    (tmp_path / "mine.png").write_text("mine")
    told = pictures.draw(made("rehearsal"), str(tmp_path))
    drawn = sorted(path.stem for path in tmp_path.glob("*.png"))
    assert drawn == sorted([*DRAWN_IN_REHEARSAL, "mine"])
    left_out = [line for line in told if "is left out" in line]
    assert [line.split()[0] for line in left_out] == NAMES[:5]
    assert left_out[0] == "  kernels is left out: nothing was timed in this run"


def test_a_run_of_nothing_draws_nothing(tmp_path):
    found = made()
    found["sections"] = []
    told = pictures.draw(found, str(tmp_path))
    left_out = told[-len(NAMES):]
    assert " ".join(" ".join(told[:-len(NAMES)]).split()) == \
        f"pictures, .png and .svg, in {tmp_path}: none"
    assert list(tmp_path.iterdir()) == []
    assert all(": " in line and "left out" in line for line in left_out)


def test_sections_without_a_picture_cost_no_other(tmp_path):
    found = made()
    for name in ("gemm", "autotune"):
        section(found, name)["measurements"] = section(found, name)["measurements"][:1]
        section(found, name)["measurements"][0]["shared_bytes"] = None
    section(found, "debugging")["data"]["fragment"] = {"corner": 5}
    for name in ("gemm_ladder", "autotune"):
        with pytest.raises(NothingToDraw):
            getattr(pictures, name)(found)
    assert title("roofline", found).startswith("7 kernels")
    found["sections"] = [section(found, "debugging")]
    told = pictures.draw(found, str(tmp_path))
    assert [path.stem for path in tmp_path.glob("*.png")] == ["swizzle"]
    assert [line for line in told if line.startswith("  fragment could not be drawn: ")]


def test_what_cannot_be_written_in_a_picture_costs_that_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PICTURES", (pictures.kernels, pictures.swizzle))
    told = pictures.draw(made(gpu=r"a $\nosuch$ GPU"), str(tmp_path))
    assert " ".join(" ".join(told[:-1]).split()).endswith(": swizzle")
    assert told[-1].startswith("  kernels could not be drawn: ValueError: ")


def test_numbers_that_are_none_are_left_out():
    found = made()
    for each in found["sections"]:
        for entry in each["measurements"][:1]:
            entry["ms"] = entry["of_ceiling"] = None
    for name in NAMES:
        assert title(name, found)
    found["ceilings"]["copy_GBps"] = None
    with pytest.raises(NothingToDraw, match="ceilings"):
        pictures.roofline(found)


def test_a_matplotlib_that_fails_costs_one_line(tmp_path):
    code = f"""from sections.runner import pictures
print(pictures.draw({made()!r}, {str(tmp_path)!r}))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "MPLBACKEND": "garbage"})
    assert "no pictures are drawn: matplotlib cannot be imported: " in done.stdout
    assert "garbage" in done.stdout and done.stderr == ""


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch):
    real = builtins.__import__

    def importing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    assert pictures.missing() is None  # it is there, but cannot be imported
    assert pictures.draw(made(), str(tmp_path)) == [
        "no pictures are drawn: matplotlib cannot be imported: No module named 'matplotlib'"]
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert pictures.draw(made(), str(tmp_path)) == [
        "no pictures are drawn, matplotlib is not here; type: "
        f"{sys.executable} -m pip install matplotlib"]
    assert list(tmp_path.iterdir()) == []
