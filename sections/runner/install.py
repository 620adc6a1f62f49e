"""Makes TileLang usable where it is not, without touching what works.

Only called when a worker could not compile its first kernel. torch and numpy are held at what is
there. After each step a fresh worker decides whether it helped. Standard library only.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sections.runner.environment import TESTED, Probe, cut
from sections.runner.installed import HERE, LIBRARIES, ROOT, installed
from sections.runner.problems import (
    TORCH_WHEELS,
    Problem,
    in_an_environment,
    obstacle,
    pip_install,
)

NIGHTLY = "https://tile-ai.github.io/whl/nightly"
TORCH_CPU = f"{TORCH_WHEELS}/cpu"
HELD = ("torch", "numpy")
TOLD = ("tilelang", "apache-tvm-ffi", "torch", "numpy")
MATTERS = ("tilelang", *LIBRARIES, "torch", "numpy")
NEW_ENVIRONMENT = "a new virtual environment"
LIMIT, LIMIT_WITH_TORCH = 900.0, 3600.0  # seconds for one call of pip
SILENCE = 20.0  # seconds without a word from pip after which one is said for it

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    probe      what the last worker found
    helped     the step after which TileLang was usable, None when none did
    diagnosis  otherwise: found, needed, what to type, in one line; it has been said already
    restart    torch or numpy changed under a running notebook: nothing more should run in it
    """

    probe: Probe
    helped: str | None = None
    diagnosis: str = ""
    restart: bool = False

    @property
    def usable(self) -> bool:
        """Whether the tour can go on now."""
        return self.probe.usable and not self.restart

    @property
    def cause(self) -> str:
        """Why it cannot, in one line."""
        return self.diagnosis if self.restart else self.probe.cause


@dataclass(frozen=True)
class Step:
    """One thing to try: what it is called and what pip is to install."""

    name: str
    arguments: tuple[str, ...]


def make_usable(
    facts: dict,
    probe: Probe,
    run_probe: Callable[[], Probe],
    say: Say,
    allow_install: bool = True,
    python: str = sys.executable,
) -> Outcome:
    """Install the tested version, its libraries anew, the newest, the nightly, until one helps.

    facts         of `machine_facts`;  probe  why TileLang is not usable
    run_probe     starts a fresh worker and tells what it found
    say           prints one line
    allow_install False: say what to type and leave pip alone
    """
    problem = obstacle(facts, probe)
    if problem.blocks or not allow_install:
        say(str(problem))
        return Outcome(probe, diagnosis=str(problem))
    say(f"TileLang cannot be used yet: {problem.found}; needed: {problem.needed}.")
    return _Installation(facts, run_probe, say, python).run(probe)


class _Refused(Exception):
    """Nothing that pip is asked for will work here; carries the Problem to tell."""


class _Unreachable(_Refused):
    """No package index answers."""


@dataclass
class _Installation:
    facts: dict
    run_probe: Callable[[], Probe]
    say: Say
    python: str
    now: dict = field(default_factory=dict)  # what is installed now
    untried: bool = False  # something is new since the last worker was started
    conflict: bool = False  # pip found nothing that goes with what is held

    @property
    def known(self) -> dict:
        """The machine's facts with what is installed now."""
        return {**self.facts, **self.now}

    def run(self, probe: Probe) -> Outcome:
        """Try step after step."""
        try:
            self.look()
            self.find_pip()
            versions = self.now["versions"]
            if held := [f"{name} {versions[name]}" for name in HELD if name in versions]:
                self.say(f"Held as they are: {', '.join(held)}.")
            if probe.missing("torch"):
                self.install_cpu_torch()
            elif "torch" not in versions:
                found = "pip does not know the torch that is here and would put another in its way"
                raise _Refused(self.environment_problem(found, NEW_ENVIRONMENT))
            for step in self.steps():
                changes = self.try_step(step)
                if self.changed_while_running(changes):
                    return self.give_up(probe, self.restart_problem(changes), restart=True)
                if not self.untried:
                    continue
                self.say("  A fresh worker tries TileLang ...")
                probe, self.untried = self.run_probe(), False
                if probe.usable:
                    self.say(f"This helped: {step.name}{_arrows(changes)}.")
                    return Outcome(probe, helped=step.name)
                self.say(f"  It did not help: {probe.cause}")
                if self.obstacle(probe).blocks:
                    break
        except _Refused as refusal:
            return self.give_up(probe, refusal.args[0])
        return self.give_up(probe, self.last_word(probe))

    def give_up(self, probe: Probe, problem: Problem, restart: bool = False) -> Outcome:
        """Say what is left to do; what pip did since the last worker is looked at once more."""
        if self.untried or installed(self.python)["versions"] != self.now["versions"]:
            probe = self.run_probe()
        if probe.usable and not restart:
            self.say("TileLang can be used all the same.")
            return Outcome(probe)
        self.say(str(problem))
        return Outcome(probe, diagnosis=str(problem), restart=restart)

    # Steps

    def steps(self):
        """What to try, one after the other; each depends on what the ones before it left."""
        before = self.now["versions"].get("tilelang")
        yield Step("the tested version", (f"tilelang=={TESTED}", *self.missing()))
        if "tilelang" in self.now["shadows"]:
            self.say("No other version can help: Python takes tilelang from elsewhere.")
            return
        versions = self.now["versions"]
        if before == TESTED == versions.get("tilelang"):
            again = [f"{n}=={versions[n]}" for n in ("tilelang", *LIBRARIES) if n in versions]
            name = "the tested version and its libraries anew"
            yield Step(name, ("--force-reinstall", "--no-deps", *again))
        yield Step("the newest version", ("-U", "tilelang", *self.missing()))
        yield Step("the nightly", ("-U", "--pre", "tilelang", "-f", NIGHTLY, *self.missing()))

    def missing(self):
        """Lines of requirements.txt, but for tilelang's, whose package is not there."""
        for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
            name = re.match(r"[\w.-]+", line)
            if name and name[0] != "tilelang" and name[0] not in self.now["versions"]:
                yield line.split("#")[0].strip()

    def try_step(self, step: Step) -> dict[str, tuple]:
        """Run pip for a step; returns what changed: {package: (before, after)}."""
        self.say(f"Installing {step.name}: pip install {shlex.join(step.arguments)}")
        before = self.now["versions"]
        succeeded = self.pip(*step.arguments)
        self.look()
        after = self.now["versions"]
        changes = {
            name: (before.get(name), after.get(name))
            for name in MATTERS
            if before.get(name) != after.get(name)
        }
        self.say(f"  before: {_versions(before)}")
        self.say(f"  after:  {_versions(after)}")
        anew = "--force-reinstall" in step.arguments
        if succeeded and not changes and not anew:
            version = f"tilelang {after.get('tilelang')}"
            newest = f"nothing newer than {version} is offered"
            reason = newest if "-U" in step.arguments else f"{version} is here already"
            if "tilelang" not in after:
                reason = "pip succeeded, yet this Python finds no tilelang"
            self.say(f"  This changed nothing: {reason}.")
        self.untried |= bool(changes) or (succeeded and anew)
        return changes

    def install_cpu_torch(self) -> None:
        """Get torch from PyTorch's index of CPU builds, where no NVIDIA driver asks for more."""
        self.say("This takes torch, tilelang and what they need, into " + self.now["site"])
        if self.facts["driver"]:
            self.say("With torch's CUDA libraries about 3 GB are downloaded, once.")
            return
        self.say("No NVIDIA driver is here: PyTorch's CPU build will do, about 0.3 GB in all.")
        self.say(f"Installing torch: pip install torch --index-url {TORCH_CPU}")
        with suppress(_Unreachable):
            if self.pip("torch", "--index-url", TORCH_CPU):
                self.look()
                self.untried = True
                return
        self.say("  PyTorch's CPU builds cannot be had here: torch comes from the default index.")
        self.say("  There it may bring CUDA along, about 3 GB to download.")

    # What to say at the end

    def changed_while_running(self, changes: dict) -> bool:
        """Whether a package that this process, or its notebook, may hold in memory was replaced."""
        replaced = [name for name in HELD if changes.get(name, (None,))[0]]
        for name in replaced:
            self.say(f"  {name} was to be held and changed all the same.")
        return any(name in sys.modules or "ipykernel" in sys.modules for name in replaced)

    def restart_problem(self, changes: dict) -> Problem:
        """torch or numpy changed: what is in memory and what is on disk do not fit."""
        menu = "Runtime > Restart session" if self.facts["colab"] else "Kernel > Restart"
        return Problem(
            f"a package that this notebook uses was replaced{_arrows(changes, HELD)}",
            "a restart",
            f"{menu}, then run the cell again",
        )

    def last_word(self, probe: Probe) -> Problem:
        """No step helped: the problem as it is now, and the way round it."""
        self.say(f"No step helped. Installed now: {_versions(self.now['versions'])}.")
        problem = self.obstacle(probe)
        if problem.blocks or "tilelang" in self.now["shadows"]:
            return problem
        if "tilelang" not in self.now["versions"]:
            if self.conflict:
                found = "no tilelang goes with the packages that are here"
                return self.environment_problem(found, NEW_ENVIRONMENT)
            needed = "what pip says above: often a wheel for this system, Linux, Python 3.10 or up"
            again = pip_install(self.known, "tilelang", *self.missing())
            return Problem("no tilelang could be installed", needed, again)
        return self.environment_problem(problem.found, NEW_ENVIRONMENT)

    def obstacle(self, probe: Probe) -> Problem:
        """What keeps TileLang from being usable, as things are now."""
        return obstacle(self.known, probe)

    def environment_problem(self, found: str, needed: str = "a virtual environment") -> Problem:
        """This Python may not be changed, or cannot be mended: a virtual environment of its own."""
        return Problem(found, needed, in_an_environment(self.facts))

    # pip

    def look(self) -> None:
        """See what is installed now; refuse where nothing can be, before a long download."""
        self.now = installed(self.python)
        if not self.now["site"]:
            raise _Refused(self.environment_problem("this Python does not say what is installed"))
        if self.now["venv"] and not os.access(self.now["site"], os.W_OK):
            raise _Refused(self.environment_problem(f"{self.now['site']} cannot be written"))

    def find_pip(self) -> None:
        """See to it that there is pip, or uv in its place."""
        if not self.now["pip"] and self.now["venv"]:
            self.say(f"This Python has no pip. Trying: {self.facts['command']} -m ensurepip")
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [self.python, "-m", "ensurepip"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=120,
                    cwd=HERE,  # the learner's folder may hold a random.py
                )
            self.look()
        if self.now["pip"]:
            return
        if shutil.which("uv"):
            self.say("This Python has no pip; uv takes its place.")
            return
        found = "this Python has no pip, and uv is not here either"
        if not self.now["venv"]:
            raise _Refused(self.environment_problem(found))
        again = pip_install(self.known, f"tilelang=={TESTED}")
        raise _Refused(Problem(found, "pip", f"{self.facts['install_ensurepip']} && {again}"))

    def command(self, arguments: tuple[str, ...], constraints: str) -> list[str]:
        """The command line for pip or uv; a patience that the user has set is the user's."""
        if not self.now["pip"]:
            return ["uv", "pip", "install", "--python", self.python, "-c", constraints, *arguments]
        patience = []
        if not {"PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"} & set(os.environ):
            patience += ["--timeout", "15"]
        if "PIP_RETRIES" not in os.environ:
            patience += ["--retries", "1"]
        quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        pip = [self.python, "-m", "pip", "install", *quiet, *patience]
        return [*pip, "-c", constraints, *arguments]

    def pip(self, *arguments: str) -> bool:
        """Install; torch and numpy are held at what is there. False: pip failed, and said why.

        Raises _Refused where nothing else that pip could be asked for would work either.
        """
        versions = self.now["versions"]
        limit = LIMIT_WITH_TORCH if "torch" in arguments else LIMIT
        with tempfile.TemporaryDirectory(prefix="tilelang-tour-") as folder:
            constraints = Path(folder, "held.txt")
            held = [f"{name}=={versions[name]}\n" for name in HELD if name in versions]
            constraints.write_text("".join(held), encoding="utf-8")
            code, lines = follow(self.command(arguments, str(constraints)), self.say, limit)
        if code == 0:
            return True
        errors = [line for line in lines if re.match(r"\s*(ERROR|error):|\s*\u00d7", line)]
        for line in errors[:6] or lines[-3:]:
            self.say(f"  {_ascii(cut(line, 300))}")
        text = "\n".join(lines)
        again = pip_install(self.known, *arguments)
        if code is None:
            slow = f"pip was not done after {limit:.0f} s and was stopped"
            raise _Refused(Problem(slow, "a faster network", again))
        offered = re.search(r"from versions: (?!none)", text)
        if re.search(NO_NETWORK, text) and not offered and NIGHTLY not in arguments:
            unreachable = "no package index can be reached"
            raise _Unreachable(Problem(unreachable, "a network connection", again))
        if problem := self.refusal(text):
            raise _Refused(problem)
        self.conflict |= bool(re.search("ResolutionImpossible|are unsatisfiable", text))
        return False

    def refusal(self, text: str) -> Problem | None:
        """What keeps pip from installing anything at all here, if that is why it failed."""
        if rule := re.search(r"externally[- ]managed|activated virtualenv \(required\)", text):
            whose = "PIP_REQUIRE_VIRTUALENV" if rule[0].startswith("activated") else "PEP 668"
            return self.environment_problem(f"this Python is not to be changed by pip ({whose})")
        if re.search(r"Permission denied|Read-only file system", text):
            return self.environment_problem(f"{self.now['site']} cannot be written")
        if re.search("No space left on device|Disk quota exceeded", text):
            site, temporary = self.now["site"], tempfile.gettempdir()
            found = f"no space left for {site}, or for pip's temporary files in {temporary}"
            return Problem(found, "about 1 GB", shlex.join(["df", "-h", site, temporary]))
        return None


NO_NETWORK = (
    "Failed to establish a new connection|Temporary failure in name resolution|"
    "Name or service not known|Connection refused|Network is unreachable|No route to host|"
    "timed out|ConnectTimeout|ReadTimeout|ProxyError|dns error|error sending request|"
    "client error .Connect"
)


def follow(command: list[str], say: Say, limit: float) -> tuple[int | None, list[str]]:
    """Run a command in a process group of its own and say what matters of its output.

    Returns its exit code, None when it was stopped after `limit` seconds, and all its lines.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={"UV_HTTP_TIMEOUT": "15", **os.environ, "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
        errors="replace",
    )
    arrived: queue.Queue = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, arrived), daemon=True)
    reader.start()
    lines: list[str] = []
    told: set[str] = set()
    start = time.monotonic()
    try:
        while (left := start + limit - time.monotonic()) > 0:
            try:
                line = arrived.get(timeout=min(SILENCE, left))
            except queue.Empty:
                if process.poll() is not None:
                    return process.returncode, lines
                say(f"  ... still at it after {time.monotonic() - start:.0f} s")
                continue
            if line is None:
                return process.wait(), lines
            lines.append(line)
            news = _news(line)
            if news and news not in told:
                say(f"  {news}")
                told.add(news)
        return None, lines
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(stream, arrived: queue.Queue) -> None:
    """Pass lines on as they come, None at the end."""
    for line in stream:
        arrived.put(line.rstrip())
    arrived.put(None)


def _news(line: str) -> str | None:
    """A line of pip's that is worth showing while it works, in short."""
    got = re.match(r"\s*Downloading (?:\S*/)?(\S+?-\d[^-\s]*|\S+)\S*( \(.*\))?", line)
    if got and ".metadata" not in line:
        return f"downloading {got[1]}{got[2] or ''}"
    if line.startswith("WARNING: Retrying"):
        return "no answer from an index, trying again"
    if re.match(r"(Installing collected packages|Successfully installed|Defaulting to user)", line):
        return cut(line, 300)
    return cut(line, 300) if "which is incompatible" in line else None


def _versions(versions: dict[str, str]) -> str:
    """The versions that a learner may have to tell someone."""
    return ", ".join(f"{name} {versions.get(name, 'not there')}" for name in TOLD)


def _arrows(changes: dict, names=TOLD) -> str:
    """What changed, in words: " (tilelang 0.1.14 -> 0.1.15)"."""
    told = [
        f"{name} {changes[name][0] or 'missing'} -> {changes[name][1] or 'missing'}"
        for name in names
        if name in changes
    ]
    return f" ({', '.join(told)})" if told else ""


def _ascii(text: str) -> str:
    return text.replace("\u00d7", "x").encode("ascii", "replace").decode()
