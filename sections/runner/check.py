"""The `--check` screen: what this machine is, what stands in the way, the mode chosen and why."""

from __future__ import annotations

import textwrap

from sections.runner.environment import STEPS, Probe, cut, release
from sections.runner.problems import Problem

WIDTH, HEIGHT = 100, 45
LABEL = 11  # characters before a row's text
MOST_VARIABLES = 6


def report(facts: dict, probe: Probe, found: list[Problem]) -> str:
    """All facts, problems and the mode, in at most 45 lines of at most 100 characters."""
    head = ["What the TileLang tour finds here", *rows(facts, probe)]
    foot = paragraph("mode", mode(facts, probe))[:3]
    body = [] if found else row("problems", "none")
    for number, problem in enumerate(found, 1):
        body += paragraph(f"problem {number}", str(problem))
    room = HEIGHT - len(head) - len(foot)
    if len(body) > room:
        body = [*body[: room - 1], *row("", "(and more: mend these first, then look again)")]
    return "\n".join([*head, *body, *foot])


def mode(facts: dict, probe: Probe) -> str:
    """The mode chosen and why."""
    arch, gpu = probe.fact("device", "arch"), probe.fact("device", "gpu")
    if not probe.usable:
        return f"none: {probe.cause}"
    if probe.fact("device", "mode") == "gpu":
        return f"GPU, {arch}: torch sees {gpu}"
    if probe.fact("device", "mode") == "arch":
        return f"the code path of {arch}, on {gpu} ({probe.fact('device', 'gpu_arch')}), as asked"
    return f"CPU rehearsal, CUDA code for {arch}: {no_gpu(facts, probe)}"


def no_gpu(facts: dict, probe: Probe) -> str:
    """Why no GPU is used."""
    if probe.fact("torch", "cuda_available"):
        usable = any(release(gpu["capability"] or "0") >= (7, 5) for gpu in facts["gpus"])
        return "as asked" if usable else "the GPU is older than sm_75"
    if facts["gpus"]:
        return "torch cannot use the GPU, see above"
    if facts["colab"]:
        return "no CUDA device (see Runtime > Change runtime type)"
    return "no CUDA device"


def row(label: str, *texts: str) -> list[str]:
    """The label and a text beside it, further texts below; each one line, cut to the width."""
    labels = (label, *[""] * len(texts))
    return [
        f"{name:<{LABEL}}{cut(text, WIDTH - LABEL)}"
        for name, text in zip(labels, texts, strict=False)
    ]


def paragraph(label: str, text: str) -> list[str]:
    """The label and a text beside it, on as many lines as it takes."""
    indent = " " * LABEL
    return textwrap.wrap(
        f"{label:<{LABEL}}{text}", WIDTH, subsequent_indent=indent, break_on_hyphens=False
    )


def rows(facts: dict, probe: Probe) -> list[str]:
    """The facts, one or a few lines each."""
    libc = f", glibc {facts['glibc']}" if facts["glibc"] else ""
    place = ", WSL" if facts["wsl"] else ", Colab" if facts["colab"] else ""
    runs = f", runs CUDA {facts['driver_cuda']}" if facts["driver_cuda"] else ""
    return [
        *row("Python", f"{facts['python']}, {end_of(facts['executable'])}"),
        *row("system", f"{facts['os']}, {facts['processor']}{libc}{place}"),
        *row("GPU", *gpu_texts(facts, probe)),
        *row("driver", f"{facts['driver'] or 'none'}{runs}"),
        *row("torch", module_text(facts, probe, "torch")),
        *row("numpy", facts["versions"].get("numpy", "not installed")),
        *row("tilelang", module_text(facts, probe, "tilelang")),
        *row("kernel", kernel_text(probe)),
        *row("nvcc", tool_text(facts["nvcc_version"], facts["nvcc"], facts["cuda_home_from"])),
        *row("C++", tool_text(*(facts[f"compiler{key}"] for key in ("_version", "", "_from")))),
        *row("cache", f"{end_of(facts['cache'])}, {facts['cache_free'] / 1e9:.0f} GB free"),
        *row("variables", *variable_texts(facts["variables"])),
    ]


def gpu_texts(facts: dict, probe: Probe) -> list[str]:
    """Each kind of GPU once, then what torch says of the one in use; at most three lines."""
    names = [
        f"{gpu['name']}, compute capability {gpu['capability'] or 'unknown'}, "
        f"{gpu['memory_bytes'] / 1e9:.0f} GB"
        for gpu in facts["gpus"]
    ]
    kinds = dict.fromkeys(names)
    texts = [f"{names.count(kind)} x {kind}" if names.count(kind) > 1 else kind for kind in kinds]
    if probe.fact("device", "gpu"):
        shared = probe.fact("device", "shared_bytes") // 1024
        count = probe.fact("device", "multiprocessors")
        in_use = f"in use: {probe.fact('device', 'gpu')}, {count} multiprocessors"
        return [*texts[:2], f"{in_use}, {shared} KB shared memory per block"]
    return texts[:3] or [f"none: {facts['gpu_note']}"]


def module_text(facts: dict, probe: Probe, module: str) -> str:
    """Version and file of a module, or what became of its import."""
    version = probe.fact(module, "version") or facts["versions"].get(module)
    if module in probe.done:
        built = probe.fact(module, "cuda_built")
        cuda = "" if module != "torch" else f" for CUDA {built}," if built else " without CUDA,"
        return f"{version},{cuda} {end_of(probe.fact(module, 'file') or 'no file')}"
    if not version:
        return "not installed"
    if STEPS.index(probe.culprit) < STEPS.index(module):
        return f"{version}, not tried"
    return f"{version}, cannot be imported: {probe.how}"


def kernel_text(probe: Probe) -> str:
    """Whether TileLang compiled a kernel."""
    if "kernel" in probe.done:
        return f"a tiny one compiled and ran in {probe.fact('kernel', 'seconds') or 0:.1f} s"
    return f"failed: {probe.how}" if probe.culprit == "kernel" else "not tried"


def tool_text(version: str | None, file: str, source: str) -> str:
    """A compiler's version, file, and where TileLang learned of it."""
    return f"{version or 'does not run'}, {end_of(file)}, from {source}" if file else "none found"


def variable_texts(variables: list[str]) -> list[str]:
    """The first of the variables, and how many more there are."""
    more = len(variables) - MOST_VARIABLES
    shown = variables[:MOST_VARIABLES] + ([f"and {more} more"] if more > 0 else [])
    return shown or ["none that bends TileLang, torch or CUDA"]


def end_of(path: str, length: int = 58) -> str:
    """The end of a path: it tells more than the beginning."""
    return path if len(path) <= length else "..." + path[3 - length :]
