"""Pictures of a run, drawn with matplotlib from what its results file holds, as PNG and as SVG.

Each title is the finding, with this run's numbers. Colours are those of Okabe and Ito, which the
colour-blind can tell apart; where colour carries meaning, so does a shape, a pattern or a word.
"""

import math
import os
import re
import sys
import textwrap
from contextlib import suppress
from importlib.util import find_spec
from statistics import median

from sections.common.device import SHARED_BYTES
from sections.runner.compare import step
from sections.runner.results import bests, place, timed

BLUE, ORANGE, GREEN, RED, SKY, PINK, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#666666")
KINDS = ("png", "svg")
WIDTH, DOTS = 9.6, 110  # inches, and dots an inch: as wide as a cell in Colab
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False,
         "svg.hashsalt": "tilelang-tour", "figure.dpi": DOTS}
LEGEND = {"frameon": False, "fontsize": 10, "columnspacing": 1.2, "handletextpad": 0.3}
ABOVE = {**LEGEND, "loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 7}
TINTS = ("#8FC1E3", "#F5CB75", "#7FCFB6", "#E3B4CF", "#F4EE9C", "#EFA477", "#C9C9C9", "#B9B2E0")
MARKERS = {BLUE: "o", ORANGE: "s", GREEN: "^", RED: "D", PINK: "v", SKY: "P", GREY: "X"}


class NothingToDraw(Exception):
    """A picture whose data this run does not have; the message says what is missing."""


def missing() -> str | None:
    """A line that says so where matplotlib is not installed."""
    if find_spec("matplotlib"):
        return None
    return ("no pictures are drawn, matplotlib is not here; type: "
            f"{sys.executable} -m pip install matplotlib")


def draw(found: dict, folder: str) -> list[str]:
    """Draw all pictures of a run that it has data for into a folder; lines that tell of it.

    Those that lie there from another run are replaced, or removed where this run has no data.
    Raises OSError where the folder cannot be written.
    """
    try:
        from matplotlib import rc_context
    except Exception as error:  # a wrong MPLBACKEND is a ValueError
        why = " ".join(str(error).split())[:200]
        return [missing() or f"no pictures are drawn: matplotlib cannot be imported: {why}"]
    drawn, left_out = [], []
    os.makedirs(folder, exist_ok=True)
    with rc_context(STYLE):
        for picture in PICTURES:
            name = picture.__name__
            path = os.path.join(folder, name)
            for kind in KINDS:  # no picture of another run beside those of this one
                with suppress(FileNotFoundError):
                    os.remove(f"{path}.{kind}")
            try:
                figure = picture(found)
                for kind in KINDS:
                    figure.savefig(f"{path}.{kind}",
                                   metadata={"Date": None} if kind == "svg" else {})
                drawn.append(name)
            except NothingToDraw as reason:
                left_out.append(f"  {name} is left out: {reason}")
            except OSError:
                raise
            except Exception as error:  # a file may hold anything; one picture costs no other
                why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                left_out.append(f"  {name} could not be drawn: {why}")
    told = f"pictures, .png and .svg, in {folder}: {', '.join(drawn) or 'none'}"
    return [*textwrap.wrap(told, 98, subsequent_indent="  ", break_on_hyphens=False), *left_out]


def sheet(title: str, height: float, columns: int = 1, note: str = "", **more):
    """A figure with its finding above and a note below; returns it and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, 88), x=0.01, ha="left", fontsize=13, fontweight="bold")
    if note:
        figure.supxlabel(textwrap.fill(note, 118), x=0.01, ha="left", fontsize=9.5, color=GREY)
    return figure, figure.subplots(1, columns, **more)


def short(name: str) -> str:
    """A baseline without its explanation: "cuBLAS (torch.matmul)" is cuBLAS."""
    return name.partition(" (")[0]


def data(found: dict, section: str, name: str):
    """What a section left for a picture; raises NothingToDraw."""
    for entry in found["sections"]:
        if entry["name"] == section and name in entry["data"]:
            return entry["data"][name]
    raise NothingToDraw(f"section {section} left no {name} in this run")


def best_kernels(found: dict) -> list[tuple[str, list[dict]]]:
    """The best kernel of each section and case; raises NothingToDraw where nothing was timed."""
    rows = [(section, entries) for section, entries in bests(found) if entries[0]["of_ceiling"]]
    if not rows:
        raise NothingToDraw("nothing was timed in this run")
    return rows


# All kernels


def kernels(found: dict):
    """Every kernel beside its baselines, in per cent of the ceiling measured on this GPU."""
    rows = best_kernels(found)
    families = {"TileLang": (BLUE, "o"), "torch": (ORANGE, "s"), "torch.compile": (RED, "D"),
                "cuBLAS, cuBLASLt": (GREEN, "^"), "SDPA": (PINK, "v")}

    def family(baseline: str) -> str:
        name = short(baseline)
        known = (key for key in ("torch.compile", "SDPA") if name.startswith(key))
        return next(known, "cuBLAS, cuBLASLt" if name.startswith("cuBLAS") else "torch")

    others = [[e for e in entries if e["baseline"] != "copy ceiling"] or entries
              for _, entries in rows]
    strongest = [min(entries, key=lambda e: e["ratio"]) for entries in others]
    ahead = sum(as_fast(entry) for entry in strongest)
    figure, axes = sheet(
        f"{place(found)}: {ahead} of {len(rows)} kernels are at least as fast as the strongest "
        "that PyTorch has for the same work", 1.9 + 0.36 * len(rows),
        note=f"Ceilings measured in this run: {ceilings(found)}. On the right the strongest "
        "baseline's time / the kernel's: above 1 the kernel is faster.")
    for y, (against, best) in enumerate(zip(others, strongest, strict=True)):
        own = 100 * best["of_ceiling"]
        points = [("TileLang", own), *((family(e["baseline"]), own / e["ratio"]) for e in against)]
        axes.plot([min(x for _, x in points), max(x for _, x in points)], [y, y], color="#CCCCCC")
        for name, x in points:
            color, marker = families[name]
            size = 120 if name == "TileLang" else 42
            axes.scatter(x, y, size, color, marker=marker, edgecolors="white", zorder=2)
        axes.annotate(f"{best['ratio']:.2f}x {short(best['baseline'])}", (1.01, y),
                      xycoords=("axes fraction", "data"), va="center", fontsize=10,
                      color=BLUE if as_fast(best) else RED)
    for name, (color, marker) in families.items():
        axes.scatter([], [], 60, color, marker=marker, label=name)
    axes.legend(**ABOVE)
    axes.axvline(100, color=GREY, linestyle="--", linewidth=1, zorder=0)
    axes.set_yticks(range(len(rows)), [f"{s}  {e[0]['case']}" for s, e in rows], fontsize=10)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("per cent of this GPU's ceiling (copy or matmul)")
    axes.grid(axis="x", alpha=0.3)
    return figure


def as_fast(entry: dict) -> bool:
    """Whether a kernel's ratio is 1.00 or more as it is printed."""
    return entry["ratio"] >= 0.995


def ceilings(found: dict) -> str:
    """Both measured ceilings in words."""
    copy, matmul = found["ceilings"].values()
    if not copy or not matmul:
        raise NothingToDraw("the ceilings were not measured in this run")
    return f"copy {copy:.0f} GB/s, matmul {matmul:.0f} TFLOP/s"


def work(entry: dict) -> tuple[float, float] | None:
    """(FLOPs, bytes) of one call, from a measurement and its case; None for an unknown case.

    A measurement counts what bounds it. The other follows from the sizes that the case names:
    (N): an addition; (rows, columns): 5 FLOPs an element; (M, N, K): the two matrices and their
    product; (batch, heads, length, head size): Q, K, V and O. Each byte counts once.
    """
    sizes, dtype, *_ = [*entry["case"].split(), "", ""]
    if not re.fullmatch(r"\d+(x\d+)*", sizes) or not re.fullmatch(r"b?float(16|32)", dtype):
        return None
    sizes, itemsize = [int(size) for size in sizes.split("x")], int(dtype[-2:]) // 8
    counted = entry["value"] * entry["ms"] * (1e9 if entry["unit"] == "TFLOP/s" else 1e6)
    if entry["unit"] == "GB/s" and len(sizes) in (1, 2):
        return (sizes[0] if len(sizes) == 1 else 5 * sizes[0] * sizes[1]), counted
    if entry["unit"] == "TFLOP/s" and len(sizes) == 3:
        M, N, K = sizes
        return counted, itemsize * (M * K + K * N + M * N)
    if entry["unit"] == "TFLOP/s" and len(sizes) == 4:
        batch, heads, length, head = sizes
        return counted, itemsize * 4 * batch * heads * length * head
    return None


def roofline(found: dict):
    """Every kernel under the roof of this GPU: FLOP/s over FLOPs a byte, both logarithmic."""
    ceilings(found)
    copy, matmul = found["ceilings"].values()
    points = {}  # a section's (FLOPs a byte, TFLOP/s, share of the roof)
    for section, entries in best_kernels(found):
        if work(entries[0]):
            flops, moved = work(entries[0])
            x, y = flops / moved, flops / entries[0]["ms"] / 1e9
            points.setdefault(section, []).append((x, y, y / min(matmul, copy * x / 1e3)))
    every = [point for marks in points.values() for point in marks]
    if not every:
        raise NothingToDraw("no case that was timed names its sizes")
    shares = [share for *_, share in every]
    figure, axes = sheet(
        f"{len(every)} kernels under the roof of {place(found)}: half of them reach "
        f"{100 * median(shares):.0f} % of it or more, the lowest {100 * min(shares):.0f} %", 5.8,
        note="FLOPs and bytes are the least that the work needs, each byte moved once; 5 FLOPs an "
        "element of softmax. A point above the roof: reading is a little faster than copying.")
    corner = 1e3 * matmul / copy  # FLOPs a byte
    zoom = axes.inset_axes([0.53, 0.13, 0.44, 0.47])
    for part, size in ((axes, 70), (zoom, 90)):
        part.loglog([0.04, corner, 12000], [0.04 * copy / 1e3, matmul, matmul], color=GREY)
        for (color, marker), (section, marks) in zip(MARKERS.items(), points.items(),
                                                     strict=False):
            xs, ys, _ = zip(*marks, strict=True)
            part.scatter(xs, ys, size, color, marker=marker, label=section, edgecolors="white",
                         zorder=3)
    below = 0.5 * copy / 1e3
    axes.text(0.2, 0.2 * below, f"copy ceiling, {copy:.0f} GB/s", fontsize=10, color=GREY,
              rotation=math.degrees(math.atan(below)), transform_rotates_text=True,
              rotation_mode="anchor")
    axes.text(12000, 1.25 * matmul, f"matmul ceiling, {matmul:.0f} TFLOP/s", ha="right",
              fontsize=10, color=GREY)
    axes.set(xlabel="FLOPs a byte", ylabel="TFLOP/s", xlim=(0.04, 14000), ylim=(0.1, 2 * matmul))
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.98), frameon=False)
    axes.grid(alpha=0.3)
    near = [(x, y) for x, y, _ in every if x > corner / 4]
    if not near:
        zoom.remove()
        return figure
    xs, ys = zip(*near, strict=True)
    zoom.set(xlim=(min(xs) / 1.4, max(xs) * 1.4), ylim=(min(ys) / 1.15, max(matmul, *ys) * 1.12))
    zoom.set_title("enlarged: where arithmetic is the limit", fontsize=10, loc="left")
    plain(zoom, xs, [*ys, matmul])
    axes.indicate_inset_zoom(zoom, edgecolor=GREY)
    return figure


def plain(axes, xs, ys) -> None:
    """Label the ends of logarithmic axes with plain numbers."""
    from matplotlib.ticker import NullFormatter, NullLocator

    for axis, values in ((axes.xaxis, xs), (axes.yaxis, ys)):
        ends = [min(values), max(values)]
        axis.set_major_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(ends, [f"{value:.0f}" for value in ends], fontsize=9)


# One section each


def ladder(found: dict, section: str, what: str):
    """A ladder's steps as bars: how near each schedule comes to the baseline."""
    cases: dict[tuple, dict[str, dict]] = {}
    for name, entry in timed(found):
        if name == section:
            steps = cases.setdefault((entry["case"], entry["baseline"]), {})
            steps[entry["variant"]] = entry
    (case, baseline), steps = max(cases.items(), key=lambda item: len(item[1]),
                                  default=((None, None), {}))
    if len(steps) < 2:
        raise NothingToDraw("no ladder was timed in this run")
    entries = list(steps.values())
    gains = [(after["ratio"] / before["ratio"], step(before["variant"], after["variant"]))
             for before, after in zip(entries, entries[1:], strict=False)]
    gain, change = max(gains)
    best = max(entries, key=lambda entry: entry["ratio"])
    figure, axes = sheet(
        f"{what} on {place(found)}: {len(entries)} schedules, from {entries[0]['ratio']:.2f}x to "
        f"{best['ratio']:.2f}x {short(baseline)}; the largest step, "
        f"\"{change.removeprefix('+ ')}\", makes it {gain:.2f}x as fast", 1.7 + 0.5 * len(entries),
        note=f"{case}. Bars: {short(baseline)}'s time / this schedule's, timed in turn; lines: the "
        "spread of the pairs.")
    for y, entry in enumerate(entries):
        ratio = entry["ratio"]
        axes.barh(y, ratio, 0.66, color=ORANGE if entry is best else SKY)
        axes.plot([entry["ratio_low"], entry["ratio_high"]], [y, y], color="black", linewidth=1.4)
        axes.annotate(f"{ratio:.2f}x   {entry['ms']:.3f} ms   {entry['value']:.0f} {entry['unit']}"
                      + ("   best" if entry is best else ""), (1.01, y), va="center", fontsize=10.5,
                      xycoords=("axes fraction", "data"),
                      fontweight="bold" if entry is best else "normal")
    above = [None, *(entry["variant"] for entry in entries)]
    labels = [textwrap.fill(step(before, entry["variant"]), 30)
              for before, entry in zip(above, entries, strict=False)]
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(entries)), labels, fontsize=10)
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.set_xlabel(f"times {short(baseline)} (dashed: as fast)")
    return figure


def gemm_ladder(found: dict):
    """The steps of the gemm section."""
    return ladder(found, "gemm", "GEMM")


def attention_ladder(found: dict):
    """The steps of the flash_attention section."""
    return ladder(found, "flash_attention", "Attention")


def autotune(found: dict):
    """The configurations that were tried: time over shared memory, the tuner's choice marked."""
    entries = [entry for section, entry in timed(found) if section == "autotune"]
    tried = [entry for entry in entries if entry["shared_bytes"]]
    if not tried:
        raise NothingToDraw("section autotune timed no configuration whose shared memory is known")
    chosen = next((entry["variant"].removeprefix("tuned: ") for entry in entries
                   if entry["headline"]), None)
    winner = next((entry for entry in tried if entry["variant"] == chosen),
                  max(tried, key=lambda entry: entry["ratio"]))
    slowest = max(tried, key=lambda entry: entry["ms"])
    cublas = median(entry["baseline_ms"] for entry in tried)
    figure, axes = sheet(
        f"On {place(found)} the tuner's choice of {len(tried)}, {winner['variant']}, takes "
        f"{winner['ms']:.3f} ms; the slowest takes {slowest['ms'] / winner['ms']:.1f}x as long",
        5.4,
        note=f"{winner['case']}. The clock drifts from one configuration to the next: points a few "
        "per cent apart are equals.")
    groups: dict[str, list[dict]] = {}
    for entry in tried:
        stages = re.search(r"\d+ stages?", entry["variant"])
        groups.setdefault(stages[0] if stages else "other", []).append(entry)
    for (color, marker), (name, group) in zip(MARKERS.items(), sorted(groups.items()),
                                              strict=False):
        axes.scatter([e["shared_bytes"] / 1024 for e in group], [e["ms"] for e in group], 75, color,
                     marker=marker, label=name, edgecolors="white", zorder=3)
    limit = SHARED_BYTES.get(found["environment"]["arch"], 0) / 1024
    if limit:
        axes.axvline(limit, color=GREY, linewidth=1.2)
        axes.annotate(f"limit of a block: {limit:.0f} KB", (limit, 1), rotation=90, ha="right",
                      va="top", xycoords=("data", "axes fraction"), fontsize=10, color=GREY)
    axes.axhline(cublas, color=GREY, linestyle="--", linewidth=1.2)
    axes.annotate(short(winner["baseline"]), (0.005, cublas), xycoords=("axes fraction", "data"),
                  va="bottom", fontsize=10, color=GREY)
    axes.scatter(winner["shared_bytes"] / 1024, winner["ms"], 330, "none", edgecolors="black",
                 linewidths=1.8, zorder=4)
    for entry, word, place_of_text in ((winner, "the tuner's choice", (0.55, 0.6)),
                                       (slowest, "the slowest", (0.3, 0.94))):
        name = textwrap.fill(entry["variant"], 48)
        axes.annotate(f"{word}: {entry['ms']:.3f} ms\n{name}",
                      (entry["shared_bytes"] / 1024, entry["ms"]), xytext=place_of_text,
                      textcoords="axes fraction", va="top", fontsize=10,
                      bbox={"color": "white", "alpha": 0.8, "pad": 1},
                      arrowprops={"arrowstyle": "-", "color": GREY, "relpos": (0, 0)})
    axes.set(xlabel="shared memory of a block, KB", ylabel="ms", xlim=(0, None),
             ylim=(0.85 * min(cublas, winner["ms"]), 1.3 * slowest["ms"]))
    axes.legend(**ABOVE)
    axes.grid(alpha=0.3)
    return figure


def epilogue_ledger(found: dict):
    """What bias and GELU cost in global memory: in one kernel, in two and in three."""
    ledgers = data(found, "fused_epilogue", "ledger")
    entries = [entry for section, best in bests(found) if section == "fused_epilogue"
               for entry in best]
    totals = {case: [sum(column) for column in list(zip(*terms, strict=True))[1:]]
              for case, terms in ledgers.items()}
    case = max(totals, key=lambda case: totals[case][2] / totals[case][0])
    fused, _, three = totals[case]
    times = {case: epilogue_times(entries, case) for case in ledgers}
    gain = f", and take {times[case][2] / times[case][0]:.2f}x the time" if times[case][2] else ""
    figure, axes = sheet(
        f"Bias and GELU as kernels of their own move {three / 1e6:.0f} MB instead of "
        f"{fused / 1e6:.0f} MB for {case}{gain}" + (f" on {place(found)}" if gain else ""),
        1.9 + 1.75 * len(ledgers))
    axes.remove()
    parts = figure.subplots(len(ledgers), 1, squeeze=False)[:, 0]
    colors = (BLUE, SKY, GREY, ORANGE, RED, GREEN)
    for part, (name, terms) in zip(parts, ledgers.items(), strict=True):
        left = [0.0, 0.0, 0.0]
        for color, (term, *counts) in zip(colors, terms, strict=False):
            widths = [count / 1e6 for count in counts]
            hatch = "" if len(set(counts)) == 1 else "//"
            part.barh(range(3), widths, 0.62, left, color=color, hatch=hatch, edgecolor="white",
                      label=term.partition(":")[0])
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for y, (total, ms) in enumerate(zip(left, times[name], strict=True)):
            part.annotate(f"{total:.0f} MB" + (f", {ms:.3f} ms" if ms else ""), (total, y),
                          xytext=(5, 0), textcoords="offset points", va="center", fontsize=10.5)
        part.set_yticks(range(3), ["fused", "two kernels", "three kernels"])
        part.invert_yaxis()
        part.set_xlim(0, 1.24 * max(left))
        part.set_title(name, loc="left", fontsize=10.5)
    parts[-1].set_xlabel("MB (1e6 bytes) across global memory; fusing spares the patterned ones")
    figure.legend(*parts[0].get_legend_handles_labels(), loc="outside lower left",
                  ncols=3, **LEGEND)
    return figure


def epilogue_times(entries: list[dict], case: str) -> list[float | None]:
    """Measured ms of the fused kernel, of two kernels and of three; None where not measured."""
    rows = {short(entry["baseline"]): entry for entry in entries if entry["case"] == f"{case} erf"}
    three, two = rows.get("torch eager"), rows.get("torch.addmm")
    return [three and three["ms"], two and two["baseline_ms"], three and three["baseline_ms"]]


def fragment(found: dict):
    """Who holds what: a tile in registers, by warp, and a corner of it by thread and register."""
    layout = data(found, "debugging", "fragment")
    corner = [[tuple(map(int, cell.split("."))) for cell in row.split()]
              for row in layout["corner"]]
    warps = [[int(warp) for warp in row.split()] for row in layout["warps"]]
    held = layout["rows"] * layout["columns"] // layout["threads"]
    figure, (whole, part) = sheet(
        f"{layout['tile']} on {layout['arch']}: each of {layout['threads']} threads holds {held} "
        f"of {layout['rows']} x {layout['columns']} values, and a row lies in {layout['sharing']} "
        "threads, so its maximum has to cross them", 6.0, 2, width_ratios=(1, 1.45),
        note="The layout is the compiler's own. t5.r3: register 3 of thread 5, whose values are "
        "framed.")
    names = sorted({warp for row in warps for warp in row})
    for y, row in enumerate(warps):
        for x, warp in enumerate(row):
            box(whole, x, y, TINTS[names.index(warp) % len(TINTS)], f"{warp}", 10)
    down, across = layout["rows"] // len(warps), layout["columns"] // len(warps[0])
    frame(whole, warps, f"the whole tile by warp, {down} x {across} values a square",
          [down * y for y in range(len(warps))], [across * x for x in range(len(warps[0]))])
    first = [thread for thread, _ in corner[0]]
    holders = sorted(set(first))
    for y, row in enumerate(corner):
        for x, (thread, register) in enumerate(row):
            tint = TINTS[holders.index(first[x]) % len(TINTS)]
            box(part, x, y, tint, f"t{thread}.r{register}", 10, framed=thread == 5)
    frame(part, corner, "its corner by thread and register", range(len(corner)),
          range(len(corner[0])))
    return figure


def box(axes, x: int, y: int, color: str, text: str, size: float, framed: bool = False) -> None:
    """A square of a grid with a word in it."""
    from matplotlib.patches import Rectangle

    edge, width, layer = ("black", 2, 3) if framed else ("white", 1, 2)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, edgecolor=edge, linewidth=width,
                             zorder=layer))
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=size, zorder=4)


def frame(axes, cells: list, title: str, rows, columns) -> None:
    """Finish a grid: its title above, its row and column numbers at its edges."""
    axes.set(xlim=(0, len(cells[0])), ylim=(len(cells), 0))
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xticks([x + 0.5 for x in range(len(cells[0]))], columns, fontsize=9)
    axes.set_yticks([y + 0.5 for y in range(len(cells))], rows, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)


def swizzle(found: dict):
    """In which banks of shared memory the pieces of a tile lie, row by row and swizzled."""
    layout = data(found, "debugging", "swizzle")
    chosen = [[int(piece) for piece in row.split()] for row in layout["pieces"]]
    across = layout["row_bytes"] // 16
    straight = [[across * y + x for x in range(across)] for y in range(len(chosen))]
    before, after = ({row[0] % 8 for row in pieces} for pieces in (straight, chosen))
    figure, parts = sheet(
        f"{layout['tile']} on {layout['arch']}: swizzled, the first pieces of {len(chosen)} rows "
        f"lie in {len(after)} groups of banks instead of {len(before)}, and are read in "
        f"{turns(chosen)} turn{'s' * (turns(chosen) > 1)} instead of {turns(straight)}", 5.2, 2,
        note="Down: rows of the tile; across: pieces of 16 bytes, 8 float16 values. Number and "
        "colour: which 4 of the 32 banks hold a piece. A matrix load takes a framed column at "
        "once if no two of its pieces share banks.")
    titles = ("row by row, as in a plain array", "as the compiler lays it")
    for part, pieces, title in zip(parts, (straight, chosen), titles, strict=True):
        for y, row in enumerate(pieces):
            for x, piece in enumerate(row):
                box(part, x, y, TINTS[piece % 8], f"{piece % 8}", 12)
        part.plot([0, 1, 1, 0, 0], [0, 0, len(pieces), len(pieces), 0], color="black",
                  linewidth=3, zorder=5, clip_on=False)
        frame(part, pieces, title, range(len(pieces)), range(across))
    return figure


def turns(pieces: list[list[int]]) -> int:
    """How often the first pieces of all rows meet in the same banks, at most."""
    banks = [row[0] % 8 for row in pieces]
    return max(map(banks.count, banks))


PICTURES = (kernels, roofline, gemm_ladder, attention_ladder, autotune, epilogue_ledger, fragment,
            swizzle)
