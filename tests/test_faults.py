"""Faults injected into the tour's own sections, through the real command on a terminal.

A copy of the tour gets the fault as a few lines of text: most strike at a section's first check,
when its kernels have been compiled, others make a kernel compute wrongly. Behind the faulty section
runs a healthy one. tests/test_runner.py has more faults, and their places, on the fake course.
"""

import os
import re
import shutil
import sys
import termios
import threading
from dataclasses import dataclass

import pytest

from sections import ORDER
from tests.command import ROOT, Home, Terminal, screen, statuses
from tests.test_results import CHECK, ENVIRONMENT, SECTION, TOP, read

PATIENCE = 300.0  # seconds after which a tour counts as hung

STRIKE = """def run(page):
    def injected(*arguments, **bounds):
        page.check = untouched
        {}
        return untouched(*arguments, **bounds)

    untouched, page.check = page.check, injected
"""
ILLEGAL = '''"""Reads far outside, unguarded."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit(pass_configs={"tl.disable_safe_memory_legalize": True})
def wild(A):
    """B[i] = A[i + 2^40]. A: (N,) float32."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            B[i] = A[T.cast(i, "int64") + T.int64(1 << 40)]
    return B


def strike():
    wild(torch.empty(64, device="cuda"))
    torch.cuda.synchronize()
'''


@dataclass(frozen=True)
class Fault:
    """What is injected, and what the section's row must say.

    code    the statement that strikes, empty where a kernel is changed instead
    note    a pattern that the row's note holds
    """

    code: str
    status: str
    note: str = "^$"


# In this order: each falls on a section in which it is cheap, for the runs of every day.
FAULTS = {
    "raise": Fault("raise RuntimeError('on purpose')", "FAIL", "^RuntimeError: on purpose"),
    "abort": Fault("__import__('os').abort()", "CRASH", "killed by SIGABRT"),
    "segfault": Fault("__import__('ctypes').string_at(0)", "CRASH", "killed by SIGSEGV"),
    "NaN": Fault("", "FAIL", "check .*elements wrong.*: nan, expected"),
    "no UTF-8": Fault("__import__('os').write(1, bytes(range(256)) * 10)", "PASS"),
    "hang": Fault("__import__('time').sleep(1000)", "TIMEOUT", r"over the limit of .*--timeout"),
    "wrong result": Fault("", "FAIL", "check .*elements wrong"),
    "SystemExit": Fault("raise SystemExit(0)", "FAIL", "^SystemExit: 0"),
    "10 MB of output": Fault("print(('x' * 99 + '\\n') * 100_000, end='')", "PASS"),
    "a child left behind": Fault("__import__('subprocess').Popen(['sleep', '1000'], "
                                 "start_new_session=True)", "PASS"),
    "refused by the compiler": Fault("", "FAIL", r"no_such_function.* \(whole text: .*\)$"),
}
ON_A_GPU = {
    "illegal memory access": Fault("__import__('sections.wild').wild.strike()", "FAIL",
                                   "the CUDA context was lost: .*illegal memory access"),
    "a kernel that does not end": Fault("import torch; torch.cuda._sleep(1 << 38); "
                                        "torch.cuda.synchronize()", "TIMEOUT", "over the limit of"),
    "out of memory": Fault("import torch; keep = [torch.empty(1 << 30, device='cuda', "
                           "dtype=torch.uint8) for _ in range(10_000)]", "FAIL",
                           "OutOfMemoryError: CUDA out of memory"),
}
NAN = "float('nan')"
CALL = "T.call_extern('float32', 'no_such_function')"
GEMM = "            T.gemm(A_shared, B_shared, C_local, policy=policy)\n"
PRODUCT = {"wrong result": ("T.copy(A[by * block_M, k * block_K], A_shared)",
                            "T.copy(A[by * block_M, 0 * block_K], A_shared)"),
           "NaN": (GEMM, GEMM + f"            T.fill(C_local, {NAN})\n"),
           "refused by the compiler": (GEMM, GEMM + f"            T.fill(C_local, {CALL})\n")}
MENDED = "            T.copy(A[by * block_M, k * block_K], A_shared)\n"
# What each section computes with: the module, and what is changed in its kernel into what.
KERNELS = {
    "vector_add": ("vector_add", {
        "wrong result": ("A_local[i] += B_local[i]", "A_local[i] += 1.01 * B_local[i]"),
        "NaN": ("A_local[i] += B_local[i]", "A_local[i] += T.cast(T.sqrt(T.float32(-1)), dtype)"),
        "refused by the compiler": ("A_local[i] += B_local[i]", f"A_local[i] += {CALL}")}),
    "gemm": ("gemm", PRODUCT),
    "fused_epilogue": ("fused_epilogue", PRODUCT),
    "softmax": ("softmax", {
        "wrong result": ("T.reduce_sum(x, total)\n", "T.reduce_sum(x, total)\n"
                                                     "        total[0] *= 1.01\n"),
        "NaN": ("T.reduce_sum(x, total)\n", f"T.fill(total, {NAN})\n"),
        "refused by the compiler": ("T.reduce_sum(x, total)\n", f"T.fill(total, {CALL})\n")}),
    "flash_attention": ("flash_attention", {
        "wrong result": ("T.copy(scores, weights)\n", "T.fill(weights, 1)\n"),
        "NaN": ("T.copy(scores, weights)\n", f"T.fill(weights, {NAN})\n"),
        "refused by the compiler": ("T.copy(scores, weights)\n", f"T.fill(scores, {CALL})\n")}),
    "autotune": ("gemm", PRODUCT),
    "debugging": ("debugging", {
        "wrong result": (MENDED, MENDED.replace("by *", "0 *")),
        "NaN": (MENDED, MENDED + f"            T.fill(A_shared, {NAN})\n"),
        "refused by the compiler": (MENDED, MENDED + f"            T.fill(C_local, {CALL})\n")}),
    "architectures": ("gemm", PRODUCT),
}
EVERY_FAULT = FAULTS | ON_A_GPU
EVERY = [(fault, section) for fault in FAULTS for section in ORDER]
SOME = [(fault, ORDER[number % len(ORDER)]) for number, fault in enumerate(FAULTS)]


def neighbour_of(section: str) -> str:
    """The healthy section that runs behind a faulty one."""
    return "gemm" if section == "vector_add" else "vector_add"


def change(name: str, section: str) -> tuple[str, str, str]:
    """What a fault changes: the module, a text that stands there once, and what takes its place."""
    if code := EVERY_FAULT[name].code:
        return section, "def run(page):\n", STRIKE.format(code)
    module, changes = KERNELS[section]
    return module, *changes[name]


@dataclass(frozen=True)
class Copy(Home):
    """A copy of the tour in a test's folder, and its command."""

    @property
    def environment(self) -> dict[str, str]:
        paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return super().environment | paths | {"PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, *arguments: str, python: tuple[str, ...] = ()) -> list[str]:
        """The real command of the copy."""
        return [sys.executable, *python, str(self.folder / "tour" / "tilelang_tour.py"), *arguments]

    def file(self, module: str):
        return self.folder / "tour" / "sections" / f"{module}.py"

    def inject(self, name: str, section: str) -> Fault:
        """Put a fault into a section."""
        module, old, new = change(name, section)
        text = self.file(module).read_text()
        assert text.count(old) == 1
        self.file(module).write_text(text.replace(old, new))
        return EVERY_FAULT[name]

    def tell_in_order(self, *names: str) -> None:
        """Make these the last sections of the tour, in this order."""
        order = [*(name for name in ORDER if name not in names), *names]
        self.file("__init__").write_text(f"ORDER = {tuple(order)!r}\n")


@pytest.fixture
def tour(tmp_path):
    """A fresh copy of the tour; no process may outlive the test."""
    (tmp_path / "tour").mkdir()
    shutil.copy(ROOT / "tilelang_tour.py", tmp_path / "tour")
    shutil.copytree(ROOT / "sections", tmp_path / "tour" / "sections",
                    ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tour" / "sections" / "wild.py").write_text(ILLEGAL)
    tour = Copy(tmp_path)
    yield tour
    tour.clean_up()


def run(tour: Copy, *names: str, timeout: float = PATIENCE, device: str = "cpu", python=()):
    """Run sections in this order; returns (exit code, the results file, what the screen shows).

    Whatever happened: no process is left, the terminal is as it was, the results file is valid.
    """
    tour.tell_in_order(*names)
    path = tour.folder / "results.json"
    terminal = Terminal(tour, "--quick", "--device", device, "--only", ",".join(names),
                        "--no-install", "--timeout", f"{timeout:g}", "--results", str(path),
                        python=python)
    beside = os.dup(terminal._master)  # outlives the reading
    before = termios.tcgetattr(beside)
    watchdog = threading.Timer(PATIENCE, terminal.process.kill)
    watchdog.start()
    try:
        code = terminal.read_to_the_end()
    finally:
        watchdog.cancel()
    after = termios.tcgetattr(beside)
    os.close(beside)
    text = terminal.output.decode("utf-8", "replace")
    shown = screen(terminal.output)

    assert tour.all_gone()
    assert after == before, "the terminal's mode"
    others = re.findall(r"[^\n\r\t\x20-\x7e\xa0-\uffff]", text.replace("\x1b[2K", ""))
    assert not others, "control characters beside the live line's"
    assert shown[-1] == "" and re.match(r"\d+ passed, \d+ failed", shown[-2]), shown[-10:]
    assert not [line for line in shown if re.search(r"^\w+: .* \(\d+ s\)$", line)], "a live line"
    assert "Traceback" not in text
    results = read(path.read_text())
    assert set(results) >= TOP and set(results["environment"]) >= ENVIRONMENT
    assert results["exit_code"] == code and results["schema"] == 1
    for section in results["sections"]:
        assert set(section) >= SECTION
        assert all(set(check) >= CHECK for check in section["checks"])
    told = {section["name"]: section["status"] for section in results["sections"]}
    assert told == statuses("\n".join(shown)) and list(told) == list(names)
    return code, {section["name"]: section for section in results["sections"]}, shown


def verdict(row: dict) -> tuple:
    """What must be the same whatever ran before: status, note and every check."""
    return row["status"], row["note"], row["checks"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The rows of both neighbours where nothing is wrong; their kernels are then in the cache."""
    known = {}

    def rows(tour: Copy, names: tuple, device: str = "cpu") -> dict[str, dict]:
        left = [name for name in names if (name, device) not in known]
        if left:
            code, found, _ = run(tour, *left, device=device)
            assert code == 0
            known.update({(name, device): row for name, row in found.items()})
        return {name: known[name, device] for name in names}

    return rows


def one_fault(tour: Copy, healthy, name: str, section: str, device="cpu", python=()) -> None:
    """Inject a fault into a section: its row tells, the neighbour's is as if nothing had been."""
    neighbour = neighbour_of(section)
    rows = healthy(tour, ("vector_add", "gemm"), device)
    fault = tour.inject(name, section)
    limit = max(10, 4 * rows[neighbour]["seconds"]) if fault.status == "TIMEOUT" else PATIENCE
    code, found, shown = run(tour, section, neighbour, timeout=limit, device=device,
                             python=python)
    row = found[section]
    status = fault.status
    if (name, section) == ("refused by the compiler", "autotune"):
        status = "SKIP"  # each of its configurations is
    assert row["status"] == status, row["note"]
    assert re.search(fault.note, row["note"]), row["note"]
    assert verdict(found[neighbour]) == verdict(rows[neighbour])
    assert code == (0 if status in ("PASS", "SKIP") else 1)
    assert len("\n".join(shown)) < 1_000_000
    if fault.status == "PASS":
        assert row["checks"] and row["lesson"]


@pytest.mark.parametrize("fault, section", SOME)
def test_a_fault_in_a_real_section_costs_one_row(tour, healthy, fault, section):
    one_fault(tour, healthy, fault, section)


def test_a_fault_with_assertions_switched_off(tour, healthy):
    one_fault(tour, healthy, "wrong result", "vector_add", python=("-O",))


@pytest.mark.gpu
def test_a_fault_on_a_gpu_with_assertions_switched_off(tour, healthy):
    one_fault(tour, healthy, "wrong result", "vector_add", device="cuda", python=("-O",))


@pytest.mark.slow
@pytest.mark.parametrize("fault, section", [pair for pair in EVERY if pair not in SOME])
def test_a_fault_in_any_real_section_costs_one_row(tour, healthy, fault, section):
    one_fault(tour, healthy, fault, section)


@pytest.mark.gpu
def test_a_fault_of_a_gpu_costs_one_row(tour, record_property):
    """All in one tour: an illegal access costs the worker too, the memory is given back."""
    record_property("faults", 3)
    faults = {"autotune": tour.inject("illegal memory access", "autotune"),
              "debugging": tour.inject("out of memory", "debugging"),
              "softmax": tour.inject("a kernel that does not end", "softmax")}
    code, found, _ = run(tour, *faults, "vector_add", timeout=60, device="cuda")
    assert code == 1
    for section, fault in faults.items():
        assert found[section]["status"] == fault.status
        assert re.search(fault.note, found[section]["note"]), found[section]["note"]
    assert found["vector_add"]["status"] == "PASS" and found["vector_add"]["measurements"]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("section", ORDER)
@pytest.mark.parametrize("fault", ON_A_GPU)
def test_a_fault_of_a_gpu_in_any_section_costs_one_row(tour, healthy, fault, section):
    one_fault(tour, healthy, fault, section, device="cuda")


def test_every_fault_and_every_section_is_in_the_runs_of_every_day():
    assert {fault for fault, _ in SOME} == set(FAULTS)
    assert {section for _, section in SOME} == set(ORDER) == set(KERNELS)


@pytest.mark.parametrize("section", ORDER)
def test_every_fault_finds_its_place(section):
    for name in EVERY_FAULT:
        module, old, new = change(name, section)
        text = (ROOT / "sections" / f"{module}.py").read_text()
        assert text.count(old) == 1, f"{name}: {old!r} stands {text.count(old)} times in {module}"
        compile(text.replace(old, new), module, "exec")
