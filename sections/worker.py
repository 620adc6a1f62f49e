"""The process that runs sections: `main` in a fresh Python, a job as JSON on its stdin.

It tells the runner what happens through marked lines in its one output stream. It dies with the
runner: the end of its stdin means that nobody listens any more. Whatever a section does to the
process (streams, folder, environment) is undone before the next one.
"""

import gc
import importlib
import io
import json
import os
import signal
import sys
import time
import types
import warnings
from contextlib import suppress

from sections.common.errors import keep, one_line, root_cause, where, whole
from sections.common.page import Page, Skip
from sections.common.processes import RUN_VARIABLE, kill_run
from sections.course import Course


class Events:
    """Writes events into the stream that also carries everything printed, in order."""

    def __init__(self, token: str):
        self._marker = f"\x1e{token} "
        self.descriptor = os.dup(1)  # a private copy: a section may close or replace 1

    def __call__(self, event: dict) -> None:
        """Send one event: everything printed so far goes first."""
        flush()
        data = f"{self._marker}{json.dumps(event, allow_nan=True)}\n".encode()
        while data:
            data = data[os.write(self.descriptor, data) :]


def flush() -> None:
    """Write out what a section's own streams have buffered; `python -u` itself buffers nothing,
    neither what Python prints nor what C does."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def unbuffered(descriptor: int) -> io.TextIOWrapper:
    """A text stream to a descriptor, as `python -u` has them."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def die_with_parent() -> None:
    """Have this run killed when the runner is gone, however it went.

    A process of its own waits for that: a section that holds Python's lock cannot hold it up.
    """
    if os.fork():
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)  # a section that asks for input finds none
        return
    try:
        while os.read(0, 4096):
            pass
        kill_run(os.environ[RUN_VARIABLE])
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def learners(path: str) -> types.ModuleType:
    """The module in a learner's file; no bytecode is left beside it."""
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


class Worker:
    """Takes one job: finds out about the machine step by step, then runs sections."""

    def __init__(self, job: dict):
        self.job = job
        self.emit = Events(job["token"])
        self.course = Course(job["package"], job["needs_tilelang"])
        self.ceilings = dict(job["ceilings"])
        self._folder, self._pid = os.getcwd(), os.getpid()

    def run(self) -> None:
        from sections.common.device import SHARED_BYTES, Device

        if self.course.needs_tilelang:
            self.device = self.probe()
            if self.device is None:
                return
        else:
            self.device = Device("rehearsal", "sm_90a", SHARED_BYTES["sm_90a"])
        self.emit({"event": "ready"})
        if self.device.is_gpu and self.job["ahead"]:
            self.compile_ahead()
        for name in self.job["sections"]:
            if self.section(name):
                return
        self.emit({"event": "done"})

    # What is here

    def probe(self):
        """Import torch and tilelang, choose the device, compile a tiny kernel: a step each."""
        for step in (self.torch_step, self.device_step, self.tilelang_step, self.kernel_step):
            name = step.__name__.removesuffix("_step")
            self.emit({"event": "step_started", "step": name})
            start = time.perf_counter()
            try:
                facts = step()
            except BaseException as error:
                self.emit({"event": "step_failed", "step": name, "error": root_cause(error),
                           "detail": whole(error)})
                return None
            seconds = time.perf_counter() - start
            self.emit({"event": "step", "step": name, "seconds": seconds, **facts})
        return self.device

    def torch_step(self) -> dict:
        import torch

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            available = torch.cuda.is_available()
        return {
            "version": torch.__version__,
            "file": torch.__file__,
            "cuda_built": torch.version.cuda,
            "cuda_available": available,
            "cuda_warning": str(caught[0].message) if caught else None,
        }

    def device_step(self) -> dict:
        from sections.common.device import select

        self.device = select(self.job["device"], self.job["arch"])
        return {
            name: getattr(self.device, name)
            for name in ("mode", "arch", "gpu", "gpu_arch", "shared_bytes", "multiprocessors",
                         "memory_bytes")
        }

    def tilelang_step(self) -> dict:
        from sections.common.start import prepare

        prepare(self.device)
        import tilelang

        return {"version": tilelang.__version__, "file": tilelang.__file__}

    def kernel_step(self) -> dict:
        from sections.common.smoke import smoke

        smoke(self.device)
        return {}

    # Sections

    def compile_ahead(self) -> None:
        """On many cores compile all sections' kernels in one go; the runner does without if this
        process does not survive it."""
        from sections.common.ahead import compile_ahead, worthwhile

        names = self.job["sections"]
        if not worthwhile(self.device, names):
            return
        self.emit({"event": "ahead"})
        environment = dict(os.environ)
        try:
            done = compile_ahead(
                self.device, [f"{self.course.package}.{name}" for name in names],
                self.job["quick"], lambda text: self.emit({"event": "progress", "text": text}),
            )
        finally:
            if os.getpid() != self._pid:  # a child that a section forked has come back
                os._exit(0)
        self.restore(environment)
        if self.context_lost():
            raise SystemExit("the CUDA context was lost")
        print(f"\n{done}")

    def section(self, name: str) -> bool:
        """Run one section, whatever it does; True when this process can run no more of them."""
        position, total = self.job["positions"][name], self.job["total"]
        self.emit({"event": "section_start", "name": name})
        title, introduction = self.course.docstring(name)
        page = Page(self.device, self.job["quick"], emit=self.emit, ceilings=self.ceilings)
        print(f"\n[{position}/{total}] {name}" + (f": {title}" if title else ""))
        page.say(introduction)
        environment = dict(os.environ)
        start = time.perf_counter()
        status, note, detail = self.attempt(name, page)
        self.restore(environment)
        with suppress(Exception):
            page.close()
        if page.failures:  # what raised after a failed check is mostly its consequence
            others = len(page.failures) - 1 + (status == "FAIL")
            status, note = "FAIL", one_line(page.failures[0])
            if others:
                note += f" (and {others} more)"
        lost = self.context_lost()
        if lost:
            note = f"{note or 'passed its checks'}; the CUDA context was lost: {lost}"
            status = "FAIL"
        if status == "PASS":
            note = page.limit_text
        elif page.details or detail:
            note += keep(name, "\n".join([*page.details, detail]))
        self.emit({
            "event": "section_end", "name": name, "status": status, "note": note,
            "seconds": time.perf_counter() - start,
            "compile_seconds": self.compile_seconds(), "context_lost": bool(lost),
        })
        return bool(lost)

    def attempt(self, name: str, page: Page) -> tuple[str, str, str]:
        """Import and run a section: its status, a note, and all that was said of an error."""
        try:
            module = importlib.import_module(f"{self.course.package}.{name}")
            page.yours = learners(self.job["learner"]) if self.job.get("learner") else module
            module.run(page)
        except Skip as reason:
            return "SKIP", one_line(str(reason)), ""
        except BaseException as error:  # SystemExit and KeyboardInterrupt from inside, too
            place = where(error, self.job.get("learner") or "")
            return "FAIL", root_cause(error) + place, whole(error)
        finally:
            if os.getpid() != self._pid:  # a child that the section forked has come back
                os._exit(0)
        return "PASS", "", ""

    def restore(self, environment: dict[str, str]) -> None:
        """Undo what a section may have done to streams, working folder and environment."""
        flush()
        os.set_blocking(self.emit.descriptor, True)
        for descriptor in (1, 2):
            os.dup2(self.emit.descriptor, descriptor)
        sys.stdout, sys.stderr = unbuffered(1), unbuffered(2)
        os.makedirs(self._folder, exist_ok=True)
        os.chdir(self._folder)
        os.environ.clear()
        os.environ.update(environment)

    def context_lost(self) -> str | None:
        """What CUDA says once a kernel has broken it; gives the section's memory back otherwise."""
        gc.collect()
        if not self.device.is_gpu:
            return None
        import torch

        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            return root_cause(error)
        return None

    def compile_seconds(self) -> float:
        """Seconds this process has spent compiling."""
        build = sys.modules.get("sections.common.build")
        return build.seconds_spent() if build else 0.0


def main() -> None:
    line = sys.stdin.buffer.readline()
    die_with_parent()
    Worker(json.loads(line)).run()


if __name__ == "__main__":
    main()
