"""The process that runs sections: `python -u -m sections.worker`, a job as JSON on its stdin.

It tells the runner what happens through marked lines in its one output stream. It dies with the
runner: the end of its stdin means that nobody listens any more.
"""

import ctypes
import gc
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress

from sections.course import Course


class Events:
    """Writes events into the stream that also carries everything printed, in order."""

    def __init__(self, token: str):
        self._marker = f"\x1e{token} "
        # A private copy: a section may close or replace file descriptor 1.
        self._descriptor = os.dup(1)

    def __call__(self, event: dict) -> None:
        """Send one event: everything printed so far goes first."""
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            ctypes.CDLL(None).fflush(None)
        data = f"{self._marker}{json.dumps(event, allow_nan=True)}\n".encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


def die_with_parent() -> None:
    """Kill this process group when the runner is gone, however it went."""

    def wait_for_the_end() -> None:
        with suppress(Exception):
            while os.read(0, 4096):
                pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def root_cause(error: BaseException) -> str:
    """One line that names what went wrong, also where the message begins with pages of CUDA."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    telling = [line for line in lines if re.search(r"\berror\b\s*[:#]", line, re.IGNORECASE)]
    line = telling[0] if telling else (lines[-1] if len(lines) > 12 else lines[0])
    return f"{type(error).__name__}: {line}"[:300]


class Worker:
    """Takes one job: finds out about the machine step by step, then runs sections."""

    def __init__(self, job: dict):
        self.job = job
        self.emit = Events(job["token"])
        self.course = Course(job["package"], job["needs_tilelang"])
        self.ceilings = dict(job["ceilings"])

    def run(self) -> None:
        from sections.common.device import SHARED_BYTES, Device

        if self.course.needs_tilelang:
            self.device = self.probe()
            if self.device is None:
                return
        else:
            self.device = Device("rehearsal", "sm_90a", SHARED_BYTES["sm_90a"])
        self.emit({"event": "ready"})
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
                           "detail": traceback.format_exc()})
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

    def section(self, name: str) -> bool:
        """Run one section, whatever it does; True when this process can run no more of them."""
        from sections.common.page import Page

        position, total = self.job["positions"][name], self.job["total"]
        self.emit({"event": "section_start", "name": name})
        title, introduction = self.course.docstring(name)
        page = Page(self.device, self.job["quick"], emit=self.emit, ceilings=self.ceilings)
        print(f"\n[{position}/{total}] {name}: {title}" if title else f"\n[{position}/{total}] {name}")
        page.say(introduction)
        folder, environment = os.getcwd(), dict(os.environ)
        start = time.perf_counter()
        status, note, detail = "PASS", "", ""
        try:
            importlib.import_module(f"{self.course.package}.{name}").run(page)
        except BaseException as error:  # SystemExit and KeyboardInterrupt from inside, too
            status, note, detail = "FAIL", root_cause(error), traceback.format_exc()
            del error
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        with suppress(Exception):
            page.close()
        if status == "PASS" and page.failures:
            status, note = "FAIL", page.failures[0]
            if len(page.failures) > 1:
                note += f" (and {len(page.failures) - 1} more)"
        lost = self.context_lost()
        if lost:
            note = f"{note or 'passed its checks'}; the CUDA context was lost: {lost}"
            status = "FAIL"
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self.emit({
            "event": "section_end", "name": name, "status": status, "note": note,
            "detail": detail, "seconds": time.perf_counter() - start,
            "compile_seconds": self.compile_seconds(), "context_lost": bool(lost),
        })
        return bool(lost)

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
