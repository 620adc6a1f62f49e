"""What a section writes on: prose, source, checks, measurements, generated code, a lesson.

A page keeps the tour's rules, so that an essay cannot forget them: a kernel whose check failed is
never timed, every check and measurement lands in the results, nothing is timed in rehearsal.
"""

import ctypes
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress

from sections.common.device import Device
from sections.common.errors import root_cause, where, whole
from sections.common.table import format_table, indent

WIDTH = 98
MAY_BE_0 = ("num_stages", "swizzle", "kept")  # of a schedule's numbers
MOST_THREADS = 1024  # of a block, on every GPU
COMPILE_SECONDS = 60  # what torch.compile may take for one function


class Skip(Exception):
    """A section that cannot run here raises it with the reason; its status is SKIP."""


class Page:
    """One section's page.

    device     where kernels run and what they are generated for
    quick      fewer rows and smaller sizes, the same checks
    overrides  values that replace those of the section's default schedule
    emit       receives events (dicts) for the runner: check, measurement, progress, ...
    yours      the module whose kernels are run; in an exercise the learner's file
    """

    def __init__(
        self,
        device: Device,
        quick: bool = False,
        overrides: dict | None = None,
        emit: Callable[[dict], None] = lambda event: None,
        ceilings: dict | None = None,
    ):
        self.device = device
        self.quick = quick
        self.overrides = overrides or {}
        self.emit = emit
        self.yours = None
        self.failures: list[str] = []
        self.details: list[str] = []  # whole texts of errors, to be kept unless the section passes
        self.lesson_text = ""
        self.limit_text = ""
        self._ceilings = ceilings if ceilings is not None else {}
        self._passed: dict[int, object] = {}  # id of a kernel whose checks all held, and the kernel
        self._failed: set[int] = set()
        self._unprinted: list[dict] = []

    @property
    def spare(self) -> bool:
        """Whether to compile as little as can be: quick mode on a GPU beside few cores."""
        from sections.common.build import FEW_CORES, cores

        return self.quick and self.device.is_gpu and cores() <= FEW_CORES

    # Prose and source

    def say(self, text: str) -> None:
        """Print a paragraph, wrapped and indented."""
        for paragraph in textwrap.dedent(text).strip().split("\n\n"):
            self._print(textwrap.fill(" ".join(paragraph.split()), WIDTH - 2))

    def text(self, text: str) -> None:
        """Print lines as they are, indented."""
        self._print(text)

    def table(self, headers: list[str], rows: list[list], right: tuple[str, ...] = ()) -> None:
        """Print a table; `right` names the columns aligned to the right."""
        self._print("\n" + format_table(headers, rows, right) + "\n")

    def show(self, thing) -> None:
        """Print the source of a kernel or function with its file and line numbers."""
        function = thing
        while not inspect.isfunction(function):  # a @tilelang.jit object wraps the function twice
            function = getattr(function, "func", None) or function.orig_func
        lines, start = inspect.getsourcelines(function)
        path = os.path.relpath(inspect.getsourcefile(function), _root())
        numbered = (f"{start + n:4} | {line.rstrip()}" for n, line in enumerate(lines))
        self._print(f"\n{path}:{start}\n" + "\n".join(numbered) + "\n")

    def lesson(self, text: str) -> None:
        """The one or two sentences a section ends with, with this run's numbers."""
        self.lesson_text = " ".join(text.split())
        self._print(textwrap.fill(f"Lesson: {self.lesson_text}", WIDTH - 2, subsequent_indent="  "))
        self.emit({"event": "lesson", "text": self.lesson_text})

    def limit(self, text: str) -> None:
        """What these kernels wait for and what their code lacks to be faster, in a sentence or two.

        It is the section's note in the results, so it has no number that changes from run to run.
        """
        self.limit_text = " ".join(text.split())
        self._print(textwrap.fill(f"Limit: {self.limit_text}", WIDTH - 2, subsequent_indent="  "))

    def try_this(self, text: str) -> None:
        """One thing to try: which value, what to expect, the command."""
        self._print(textwrap.fill("Try: " + " ".join(text.split()), WIDTH - 2,
                                  subsequent_indent="  ", break_on_hyphens=False))

    def progress(self, text: str) -> None:
        """What is going on, for the live line of a terminal."""
        self.emit({"event": "progress", "text": text})

    # Kernels

    def schedule(self, defaults: dict) -> dict:
        """A section's default schedule with the values given on its command line put in."""
        unknown = set(self.overrides) - set(defaults)
        if unknown:
            known = ", ".join(f"{name}={value}" for name, value in defaults.items())
            raise SystemExit(f"unknown name {', '.join(sorted(unknown))}; this section has: "
                             f"{known or 'no values to change'}")
        for name, value in self.overrides.items():
            least = 0 if name in MAY_BE_0 else 1
            if isinstance(defaults[name], bool):
                fits, needed = isinstance(value, bool), "True or False"
            else:
                fits = type(value) is int and value >= least
                needed = f"a whole number, {least} or more"
                if name == "threads":
                    fits &= value in range(32, MOST_THREADS + 1, 32)
                    needed = f"a multiple of 32, {MOST_THREADS} at most"
            if not fits:
                raise SystemExit(f"{name}={value!r}: needed: {needed}")
        return {**defaults, **self.overrides}

    def build(
        self, jobs: Sequence[tuple], read: Sequence[tuple] = (), torch_compile: bool = False
    ) -> list:
        """Compile (kernel, arguments) pairs in parallel; each one's kernel, or its exception.

        read           (kernel, arguments) or (kernel, arguments, architecture): what the page will
                       ask for the `code` and `resources` of, got ready meanwhile
        torch_compile  whether the page will ask for `torch_compiled`, got ready meanwhile

        See `build.build`. A section names all it needs in its first call: on many cores the
        kernels of all sections are compiled before the first one begins (`sections.common.ahead`).
        """
        from sections.common.build import build
        from sections.common.measure import warm_up_torch_compile

        timed = self.device.is_gpu and not self.quick
        return build(
            self.device,
            list(jobs),
            lambda done, total: self.progress(f"compiling, {done} of {total} kernels done"),
            list(read),
            warm_up_torch_compile if torch_compile and timed else lambda: None,
        )

    def call(self, kernel, inputs: Sequence):
        """Run a kernel once."""
        return kernel(*inputs)

    def check(self, case: str, kernel, inputs: Sequence, expected, dtype=None, **bounds) -> bool:
        """Run a kernel and compare its result with `expected`; see `verify.compare` for `bounds`.

        dtype    the result's dtype, that of the first input unless given
        Returns whether the check held; one that did not makes the section FAIL.
        """
        from sections.common.verify import compare, unwritten_is_nan

        if isinstance(kernel, BaseException):  # build's answer for a kernel that did not compile
            self.did_not_compile(case, kernel)
            return False
        self.progress(f"checking {case}")
        with unwritten_is_nan():
            actual = self.call(kernel, inputs)
        result = compare(actual, expected, dtype or inputs[0].dtype, **bounds)
        check = {
            "event": "check",
            "case": case,
            "rel_error": result.rel_error,
            "bound": result.bound,
            "passed": result.passed,
        }
        self.emit(check)
        if result.passed:
            self._passed[id(kernel)] = kernel
            self._unprinted.append(check)
        else:
            self._failed.add(id(kernel))
            self.fail(f"check {case}: {result.problem}")
        return result.passed

    def fail(self, problem: str) -> None:
        """Note a fault that makes the section FAIL; the section goes on."""
        self.failures.append(problem)
        self._print(f"FAILED  {problem}")

    def did_not_compile(self, what: str, error: BaseException) -> None:
        """Note what stopped a kernel, as `build` returns it; the whole text is kept in a file."""
        place = where(error, getattr(self.yours, "__file__", ""))
        self.details.append(whole(error))
        self.fail(f"{what} did not compile: {root_cause(error)}{place}")

    def measure(self, case: str, variant: str, kernel, inputs: Sequence, baselines: dict, work,
                rounds: int = 5, rivals: dict | None = None) -> list[dict]:
        """Time a checked kernel in turn with its baselines; one measurement a baseline, in order.

        case, variant  what was computed and by which schedule
        baselines      {name: function without arguments}; "copy ceiling" needs no function: None
        work           measure.Work of one call
        rivals         other kernels of the tour, as baselines are given; timed in the same turns,
                       they stand in each measurement: "rivals": {name: {"ms": ..., "ratio": ...}}
        """
        from sections.common import measure

        if not self.device.is_gpu:
            raise RuntimeError("nothing is timed in rehearsal")
        if id(kernel) not in self._passed or id(kernel) in self._failed:
            raise RuntimeError(f"{variant} ({case}) has not passed a check, so it is not timed")
        self.progress(f"timing {variant or case}")
        functions = {
            name: function or measure.copy_of(work.bytes_moved)
            for name, function in baselines.items()
        }
        ms, against = measure.alternate(
            lambda: kernel(*inputs), {**functions, **(rivals or {})}, 3 if self.quick else rounds,
            20.0 if rounds > 3 else 10.0,  # a row of a ladder is timed more briefly
        )
        beside = {name: against.pop(name) for name in rivals or {}}
        value, unit = work.rate(ms)
        ceiling = self.ceilings()["matmul_TFLOPs" if work.flops else "copy_GBps"]
        code = getattr(kernel, "__dict__", {}).get("code")  # if read: generating it takes time
        measurements = [
            {
                "event": "measurement",
                "case": case,
                "variant": variant,
                "ms": ms,
                "baseline": name,
                "baseline_ms": versus.baseline_ms,
                "ratio": versus.ratio,
                "ratio_low": versus.low,
                "ratio_high": versus.high,
                "value": value,
                "unit": unit,
                "of_ceiling": value / ceiling,
                "shared_bytes": code and code.shared_bytes,
            }
            for name, versus in against.items()
        ]
        for measurement in measurements:
            if beside:
                measurement["rivals"] = {name: {"ms": versus.baseline_ms, "ratio": versus.ratio}
                                         for name, versus in beside.items()}
            self.emit(measurement)
        return measurements

    def timings(self, rows: list[dict]) -> None:
        """Print measurements as a table, a row a baseline; one schedule for all stands above it."""
        if not rows:
            self.say("No kernel passed its checks, so none was timed.")
            return
        variants = {row["variant"] for row in rows}
        headers = ["case", "kernel", "ms", rows[0]["unit"], "against", "its ms", "ratio", "spread"]
        cells = [[row["case"], row["variant"], f"{row['ms']:.3f}", f"{row['value']:.0f}",
                  row["baseline"], f"{row['baseline_ms']:.3f}", f"{row['ratio']:.2f}x",
                  f"{row['ratio_low']:.2f}-{row['ratio_high']:.2f}"] for row in rows]
        if len(variants) == 1:
            self.say(f"Schedule: {variants.pop()}.")
            headers, *cells = ([*row[:1], *row[2:]] for row in [headers, *cells])
        self.table(headers, cells, right=("ms", rows[0]["unit"], "its ms", "ratio"))
        self.say("""Ratio: the other's time / this kernel's in a pair timed in turn, above 1 this
        kernel is faster; the median of the pairs, and their spread: where it crosses 1, the two are
        level. The times are medians of their own and need not divide to it.""")

    def torch_compiled(self, function: Callable[[], object]) -> dict:
        """{"torch.compile": ...} as a baseline; empty in quick mode or where it is not ready."""
        from sections.common.measure import torch_compiled

        if self.quick:
            return {}
        self.progress("waiting for torch.compile")
        try:
            return {"torch.compile": torch_compiled(function, COMPILE_SECONDS)}
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            self.say(f"torch.compile is left out: {type(error).__name__}: {reason}"[:200])
            return {}

    def keep(self, name: str, value) -> None:
        """Leave something beside checks and measurements in the results, for a picture."""
        self.emit({"event": "data", "name": name, "value": value})

    def headline(self, measurement: dict) -> None:
        """Make a measurement the one that the summary shows for this section."""
        self.emit({**measurement, "event": "headline"})

    def ceilings(self) -> dict:
        """This GPU's measured ceilings: {"copy_GBps": ..., "matmul_TFLOPs": ...}."""
        if not self._ceilings:
            from sections.common import measure

            self.progress("measuring this GPU's ceilings")
            self._ceilings["copy_GBps"] = measure.copy_ceiling(self.device.memory_bytes)
            self._ceilings["matmul_TFLOPs"] = measure.matmul_ceiling(self.device.memory_bytes)
            self.emit({"event": "ceilings", **self._ceilings})
        return self._ceilings

    # Generated code

    def code(self, kernel, **shown):
        """The CUDA of a built kernel; in rehearsal for the arguments `shown`, a size for a GPU.

        Sizes are constants while a kernel is compiled, so a small size has other code than a large.
        """
        if isinstance(kernel, BaseException):  # it did not compile: that is what went wrong
            raise kernel
        if self.device.is_gpu:
            return kernel.code
        from sections.common.codegen import generate

        return generate(kernel.jit, self.device.arch, **{**kernel.arguments, **shown})

    def landmarks(self, code, only: tuple[str, ...] = ()) -> None:
        """Print what is worth finding in a kernel's CUDA: line, text, and what it does."""
        from sections.common.codegen import landmarks

        lines = code.source.splitlines()
        rows = [[mark.line, squeeze(lines[mark.line - 1].strip(), 48), mark.meaning]
                for mark in landmarks(code, only)]
        shared = f", {kilobytes(code.shared_bytes)} shared memory" if code.shared_bytes else ""
        self._print(f"\nLandmarks in the CUDA generated for {code.arch} "
                    f"({code.threads} threads a block{shared}):")
        self._print(format_table(["line", "code", "what it does"], rows, right=("line",)) + "\n")

    def listing(self, code, width: int = 100) -> None:
        """Print a short kernel's generated CUDA whole."""
        from sections.common.codegen import body

        lines = (f"{number:4} | {line if len(line) <= width else line[:width - 3] + '...'}"
                 for number, line in body(code))
        self._print(f"\nCUDA generated for {code.arch}:\n" + "\n".join(lines) + "\n")

    def resources(self, code) -> str | None:
        """Registers and spills of a kernel as a sentence, None where there is no nvcc."""
        from sections.common.codegen import resources

        self.progress(f"asking nvcc about {code.name} for {code.arch}")
        found = resources(code)
        if found is None:
            return None
        spills = f"{found.spill_bytes} bytes spilled" if found.spill_bytes else "nothing spilled"
        dealt = " (at the start; reg_dealloc and reg_alloc then deal them out anew)" \
            if "warpgroup_reg_alloc" in code.source else ""
        return f"{found.registers} registers a thread{dealt}, {spills}"

    # Output

    def _print(self, text: str, by: str = "  ") -> None:
        """Print after what C code printed, and after the checks that have not been told yet."""
        checks, self._unprinted = self._unprinted, []
        flush_c_stdio()
        if checks:
            worst = max(checks, key=lambda check: check["rel_error"] / check["bound"])
            cases = list(dict.fromkeys(check["case"] for check in checks))
            if len(cases) > 8:
                cases[4:] = [f"and {len(cases) - 4} more"]
            line = (f"checked  {', '.join(cases)}: worst relative error {worst['rel_error']:.1e} "
                    f"(bound {worst['bound']:.1e})")
            if len(checks) > 1:
                line += f", for {worst['case']}"
            print(indent(textwrap.fill(line, WIDTH - 2, subsequent_indent=" " * 9)), flush=True)
        if text:
            print(indent(text, by), end="\n\n" if text.endswith("\n") else "\n", flush=True)

    def close(self) -> None:
        """Print what has not been printed yet."""
        self._print("")


def kilobytes(count: int) -> str:
    """Bytes as KB (1024 bytes): 49152 -> "48 KB"."""
    kb = count / 1024
    return f"{kb:.0f} KB" if kb == int(kb) else f"{kb:.1f} KB"


def flush_c_stdio() -> None:
    """Write out what printf has buffered, a kernel's own printf included."""
    with suppress(Exception):
        ctypes.CDLL(None).fflush(None)
    with suppress(Exception):
        sys.stdout.flush()


def squeeze(code: str, length: int) -> str:
    """A line of CUDA in at most `length` characters, what it computes indices from left out.

    The longest innermost brackets become (...) one by one until the line is short enough.
    """
    code = re.sub(r"\(\(int\)((?:block|thread)Idx\.\w)\)", r"\1", code)
    hole = "\0"
    while len(code) + 4 * code.count(hole) > length:
        inner = [match for match in re.finditer(r"[(\[][^()\[\]]*[)\]]", code) if len(match[0]) > 5]
        if not inner:
            break
        longest = max(inner, key=lambda match: len(match[0]))
        code = code[: longest.start()] + hole + code[longest.end() :]
    code = code.replace(hole, "(...)")
    return code if len(code) <= length else code[: length - 3] + "..."


def _root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
