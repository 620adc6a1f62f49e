"""The real command on machines where something is missing or broken: what a learner reads, the exit
code, and what is left as it was. Real pip, tiny wheels, no network.

A made wheel of torch or tilelang either holds a broken module or only points to the real package
that these tests run with: so a broken machine can be mended and then runs a real rehearsal.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sections.runner.check import HEIGHT, WIDTH
from sections.runner.environment import TESTED
from sections.runner.installed import ROOT, installed, output_of
from tests.made_wheels import (
    ABORTS,
    SMALL_TORCH,
    make_environment,
    make_wheel,
    real_packages,
    site_packages,
)

APART = ("tilelang", "apache-tvm-ffi")
NEEDS = {"tilelang": ("apache-tvm-ffi<0.1.13,>=0.1.11", "torch", "numpy>=1.23.5")}
TORCH, NUMPY = "2.11.0+cu128", "2.1.3"  # as on Colab; newer ones are on offer
HELD = f"Held as they are: torch {TORCH}, numpy {NUMPY}."
AUTO = ("--only", "vector_add", "--quick")
SHORT = (*AUTO, "--device", "cpu")
BROKEN = f"tilelang {TESTED} imports but cannot compile and run a kernel: "
# The real tilelang, but for one thing.
CANNOT_COMPILE = """
import sys
from pathlib import Path
sys.path += [{tilelang!r}, {ffi!r}]
__path__ = [{tilelang!r} + "/tilelang"]
__file__ = __path__[0] + "/__init__.py"
exec(Path(__file__).read_text())
def compile(*_, **__):
    raise AttributeError("module 'tvm' has no attribute 'build'")
"""
# A pip that only tells that it was called.
MARKS = "from pathlib import Path\nPath(__file__).with_name('called').touch()\n"
# A pip that installs tilelang and, whatever was said, another torch.
REPLACES_TORCH = """
import sys, zipfile
from pathlib import Path
site = Path(__file__).parents[1]
for old in site.glob("torch-*.dist-info/METADATA"):
    old.write_text("Metadata-Version: 2.1\\nName: torch\\nVersion: 2.99.0\\n")
zipfile.ZipFile({wheel!r}).extractall(site)
"""


@dataclass(frozen=True)
class Typed:
    """What became of a command."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def told(self) -> str:
        """The text with every space and line break as one space: screens are wrapped."""
        return " ".join(self.text.split())

    def says(self, *lines: str) -> bool:
        """Whether it printed these lines, in this order, others between them."""
        left = iter(self.lines)
        missing = next((line for line in lines if line not in left), None)
        assert missing is None, f"not there, or not in its place: {missing}\n\n{self.text}"
        return True

    @property
    def passed(self) -> bool:
        """Whether the tour ran its section and ended well."""
        row = re.search(r"^vector_add +PASS ", self.text, re.MULTILINE)
        return self.code == 0 and bool(row) and "\n1 passed, 0 failed in " in self.text

    def ended_before_a_section(self, cause: str) -> bool:
        """Whether nothing was run, and the summary says why."""
        assert "[1/1]" not in self.text and "Traceback" not in self.text, self.text
        assert self.says(f"vector_add: NOT RUN: {cause}")
        last = self.lines[-1].startswith("0 passed, 0 failed, 1 not run in ")
        return self.code == 1 and last and bool(re.search("^vector_add  NOT RUN ", self.text, re.M))


class Machine:
    """A learner's machine: an environment, wheels that pip may take, and the command."""

    def __init__(self, folder: Path, shared: "Shared"):
        self.folder, self.shared = folder, shared
        self.wheels, self.home, self.bin = (folder / name for name in ("wheels", "home", "bin"))
        self.python = make_environment(folder / "venv")
        self.site = site_packages(folder / "venv")
        for place in (self.wheels, self.home, self.bin):
            place.mkdir()
        self.tour = ROOT / "tilelang_tour.py"
        self.offer("apache-tvm-ffi", "0.1.12")
        self.offer("numpy", "9.9")
        self.offer("torch", "2.99.0")
        self.offer("tabulate", "0.9.0")

    # Before the command

    def wheel(self, folder: Path, name: str, version: str, code: str | None) -> Path:
        """A wheel of the real package, or of the code."""
        links = self.shared.packages
        real = links.get(name, links["rest"]) if code is None else None
        return make_wheel(folder, name, version, code or "", NEEDS.get(name, ()), real)

    def offer(self, name: str, version: str, code: str | None = None) -> None:
        """Put a wheel where pip finds it."""
        self.wheel(self.wheels, name, version, code)

    def have(self, name: str, version: str, code: str | None = None) -> None:
        """Have a package installed, from a wheel that pip does not find."""
        shutil.unpack_archive(
            self.wheel(self.folder / "mine", name, version, code), self.site, "zip"
        )

    def have_torch(self, code: str | None = None) -> None:
        """Have torch, numpy and tabulate as on Colab."""
        self.have("torch", TORCH, code)
        self.have("numpy", NUMPY, "" if code else None)
        self.have("tabulate", "0.9.0", "" if code else None)

    def have_pip(self, code: str | None = None) -> None:
        """Have a pip: the real one, or one that does what the code says."""
        if code is None:
            (self.site / "shared_pip.pth").write_text(str(self.shared.pip))
            return
        (self.site / "pip").mkdir()
        (self.site / "pip" / "__init__.py").write_text("")
        (self.site / "pip" / "__main__.py").write_text(code)

    def program(self, name: str, code: str) -> None:
        """Put a shell script on PATH."""
        (self.bin / name).write_text(f"#!/bin/sh\n{code}\n")
        (self.bin / name).chmod(0o755)

    def at_start(self, code: str) -> None:
        """Have every Python of the environment run this first."""
        (self.site / "sitecustomize.py").write_text(code)

    def copy_tour(self) -> Path:
        """Take a copy of the tour of one's own; returns its folder."""
        folder = self.folder / "tour"
        shutil.copytree(ROOT / "sections", folder / "sections")
        for name in ("tilelang_tour.py", "requirements.txt"):
            shutil.copy(ROOT / name, folder)
        self.tour = folder / "tilelang_tour.py"
        return folder

    def index(self) -> dict[str, str]:
        """Variables that have pip find the wheels through a package index alone."""
        for wheel in self.wheels.iterdir():
            folder = self.folder / "simple" / wheel.name.split("-")[0].replace("_", "-")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel, folder)
            links = [f'<a href="{file.name}">{file.name}</a>' for file in folder.glob("*.whl")]
            (folder / "index.html").write_text("<!DOCTYPE html>" + "".join(links))
        address = (self.folder / "simple").as_uri()
        return {"PIP_INDEX_URL": address, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}

    # The command

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of who runs the tests; there is a proxy, and it is down."""
        path = [self.python.parent, self.bin, os.environ["PATH"]]
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self.home),
            "TILELANG_CACHE_DIR": str(self.shared.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "https_proxy": "http://127.0.0.1:9",
        }

    def run(self, *arguments: str, cwd: Path | None = None, program=None, **variables) -> Typed:
        """Run a file of Python with the machine's python: the tour, unless another is named."""
        given = {name: value for name, value in variables.items() if value}
        left = {k: v for k, v in self.environment.items() if variables.get(k) != ""}
        done = subprocess.run(
            [self.python, program or self.tour, *arguments],
            cwd=cwd or self.home,
            env=left | given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            preexec_fn=obey_permissions,
        )
        return Typed(done.returncode, done.stdout)

    @property
    def versions(self) -> dict[str, str]:
        """What is installed."""
        return installed(str(self.python))["versions"]


def obey_permissions() -> None:
    """Have root stopped by permissions, too, as any other user is."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@dataclass(frozen=True)
class Shared:
    """What all the machines share: links to the real packages, a pip, TileLang's cache."""

    packages: dict[str, Path]
    pip: Path
    cache: Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Shared:
    folder = tmp_path_factory.mktemp("shared")
    subprocess.run([sys.executable, "-m", "venv", folder / "pip"], check=True)
    packages = real_packages(folder / "real", APART)
    return Shared(packages, site_packages(folder / "pip"), folder / "cache")


@pytest.fixture
def bare(tmp_path, shared) -> Machine:
    """A machine with nothing but Python and pip."""
    machine = Machine(tmp_path, shared)
    machine.have_pip()
    return machine


@pytest.fixture
def machine(tmp_path, shared):
    """A machine where torch and numpy are as on Colab: no test may find them changed."""
    machine = Machine(tmp_path, shared)
    yield machine
    versions = machine.versions
    assert (versions["torch"], versions["numpy"]) == (TORCH, NUMPY)


@pytest.fixture
def real(machine) -> Machine:
    """... and torch is the real one."""
    machine.have_torch()
    machine.have_pip()
    return machine


@pytest.fixture
def small(machine) -> Machine:
    """... and torch is so small that no section could run, where none is to be run."""
    machine.have_torch(SMALL_TORCH)
    machine.have_pip()
    return machine


def before_and_after(before: str, after: str) -> tuple[str, str]:
    """The lines that tell the versions: "0.1.14, apache-tvm-ffi 0.1.12" before, and after."""
    held = f"torch {TORCH}, numpy {NUMPY}"
    return f"  before: tilelang {before}, {held}", f"  after:  tilelang {after}, {held}"


# A tilelang that is there and cannot be used


def test_an_import_that_aborts_is_named_and_mended(real):
    """Pip calls the broken package satisfied."""
    real.have("apache-tvm-ffi", "0.1.12")
    real.have("tilelang", TESTED, ABORTS)
    real.offer("tilelang", TESTED)
    typed = real.run(*SHORT)
    same = f"{TESTED}, apache-tvm-ffi 0.1.12"
    again = f"--force-reinstall --no-deps tilelang=={TESTED} apache-tvm-ffi==0.1.12"
    assert typed.says(
        f"TileLang cannot be used yet: importing tilelang {TESTED} ends the process (killed by "
        "SIGABRT), usually the fault of apache-tvm-ffi, here 0.1.12; needed: "
        "apache-tvm-ffi<0.1.13,>=0.1.11.",
        HELD,
        f"Installing the tested version: pip install tilelang=={TESTED}",
        *before_and_after(same, same),
        f"  This changed nothing: tilelang {TESTED} is here already.",
        f"Installing the tested version and its libraries anew: pip install {again}",
        f"  Successfully installed apache-tvm-ffi-0.1.12 tilelang-{TESTED}",
        *before_and_after(same, same),
        "  A fresh worker tries TileLang ...",
        "This helped: the tested version and its libraries anew.",
    )
    assert typed.passed, typed.text
    assert not (real.site / "tilelang").exists(), "the broken one is gone"


def test_an_import_that_aborts_whatever_is_installed(small):
    """The parent lives, and says how it ended also where the results go."""
    small.have("apache-tvm-ffi", "0.1.12")
    small.have("tilelang", "0.1.14", ABORTS)
    small.offer("tilelang", TESTED, ABORTS)
    small.offer("tilelang", "9.0", ABORTS)
    typed = small.run(*SHORT, "--results", "results.json")
    aborts = "tilelang cannot be imported: killed by SIGABRT"
    assert typed.says(
        f"Installing the tested version: pip install tilelang=={TESTED}",
        *before_and_after("0.1.14, apache-tvm-ffi 0.1.12", f"{TESTED}, apache-tvm-ffi 0.1.12"),
        f"  It did not help: {aborts}",
        "Installing the newest version: pip install -U tilelang",
        *before_and_after(f"{TESTED}, apache-tvm-ffi 0.1.12", "9.0, apache-tvm-ffi 0.1.12"),
        f"  It did not help: {aborts}",
        "Installing the nightly: pip install -U --pre tilelang "
        "-f https://tile-ai.github.io/whl/nightly",
        "  no answer from an index, trying again",
        "  This changed nothing: nothing newer than tilelang 9.0 is offered.",
        f"No step helped. Installed now: tilelang 9.0, apache-tvm-ffi 0.1.12, torch {TORCH}, "
        f"numpy {NUMPY}.",
        "importing tilelang 9.0 ends the process (killed by SIGABRT), usually the fault of "
        "apache-tvm-ffi, here 0.1.12; needed: a new virtual environment; type: python -m venv "
        f"~/tilelang-tour && ~/tilelang-tour/bin/python {ROOT}/tilelang_tour.py",
    )
    assert typed.ended_before_a_section(aborts)
    results = json.loads((small.home / "results.json").read_text())
    assert results["exit_code"] == 1
    found = [results["environment"][name] for name in ("torch", "tilelang")]
    assert found == [TORCH, "9.0"], "what is there after the last step"
    assert [(row["name"], row["status"]) for row in results["sections"]] == [
        ("vector_add", "NOT RUN")
    ]


def test_an_import_that_works_and_compiles_that_do_not(real):
    """The cause once, before any section. A lower-numbered nightly changes nothing."""
    links = real.shared.packages
    broken = CANNOT_COMPILE.format(
        tilelang=str(links["tilelang"]), ffi=str(links["apache-tvm-ffi"])
    )
    real.have("apache-tvm-ffi", "0.1.12")
    real.have("tilelang", TESTED, broken)
    real.offer("tilelang", TESTED, broken)
    real.offer("tilelang", f"{TESTED}.dev9", broken)
    typed = real.run(*SHORT)
    why = "AttributeError: module 'tvm' has no attribute 'build'"
    assert typed.lines[0] == (
        f"TileLang cannot be used yet: {BROKEN}{why}; needed: a kernel that runs."
    )
    assert typed.says(
        "  A fresh worker tries TileLang ...",
        f"  It did not help: {BROKEN.replace(f' {TESTED}', '')}{why}",
        f"  This changed nothing: nothing newer than tilelang {TESTED} is offered.",
        "Installing the nightly: pip install -U --pre tilelang "
        "-f https://tile-ai.github.io/whl/nightly",
        f"  This changed nothing: nothing newer than tilelang {TESTED} is offered.",
        f"{BROKEN}{why}; needed: a new virtual environment; type: python -m venv ~/tilelang-tour "
        f"&& ~/tilelang-tour/bin/python {ROOT}/tilelang_tour.py",
    )
    assert typed.text.count("A fresh worker tries") == 1
    assert typed.ended_before_a_section(f"{BROKEN.replace(f' {TESTED}', '')}{why}")


def test_a_wrong_library_is_resolved_anew(real):
    """And nothing but that."""
    real.have("apache-tvm-ffi", "0.1.9", ABORTS)
    real.have("tilelang", TESTED)
    real.offer("tilelang", TESTED, ABORTS)
    typed = real.run(*SHORT)
    assert typed.says(
        f"TileLang cannot be used yet: importing tilelang {TESTED} ends the process (killed by "
        "SIGABRT), usually the fault of apache-tvm-ffi, here 0.1.9; needed: "
        "apache-tvm-ffi<0.1.13,>=0.1.11.",
        "  Successfully installed apache-tvm-ffi-0.1.12",
        *before_and_after(f"{TESTED}, apache-tvm-ffi 0.1.9", f"{TESTED}, apache-tvm-ffi 0.1.12"),
        "This helped: the tested version (apache-tvm-ffi 0.1.9 -> 0.1.12).",
    )
    assert typed.passed, typed.text


def test_a_tilelang_of_which_pip_only_has_the_name(small):
    """Its files are gone; pip would call it satisfied."""
    small.have("apache-tvm-ffi", "0.1.12")
    small.have("tilelang", TESTED, "")
    small.offer("tilelang", TESTED, ABORTS)
    shutil.rmtree(small.site / "tilelang")
    typed = small.run("--check")
    assert typed.code == 1
    gone = "cannot be imported: ModuleNotFoundError: No module named 'tilelang'"
    assert typed.says(f"tilelang   {TESTED}, {gone}")
    assert (
        f"tilelang {TESTED} {gone}; needed: a tilelang that imports; type: python -m pip install "
        f"--force-reinstall --no-deps tilelang=={TESTED} apache-tvm-ffi==0.1.12"
    ) in typed.told


# A tilelang that is not there


def test_no_tested_version_then_the_newest_then_the_nightly(real):
    real.offer("tilelang", "9.0", ABORTS)
    real.offer("tilelang", "9.1.dev1")
    typed = real.run(*SHORT)
    assert typed.says(
        "TileLang cannot be used yet: tilelang is not installed; needed: tilelang 0.1.13 or newer, "
        f"tested with {TESTED}.",
        HELD,
        f"Installing the tested version: pip install tilelang=={TESTED}",
        f"  ERROR: No matching distribution found for tilelang=={TESTED}",
        "Installing the newest version: pip install -U tilelang",
        *before_and_after("not there, apache-tvm-ffi not there", "9.0, apache-tvm-ffi 0.1.12"),
        "  It did not help: tilelang cannot be imported: killed by SIGABRT",
        "Installing the nightly: pip install -U --pre tilelang "
        "-f https://tile-ai.github.io/whl/nightly",
        *before_and_after("9.0, apache-tvm-ffi 0.1.12", "9.1.dev1, apache-tvm-ffi 0.1.12"),
        "This helped: the nightly (tilelang 9.0 -> 9.1.dev1).",
    )
    assert typed.passed, typed.text


def test_a_release_that_wants_another_torch_is_not_taken(small):
    """Pip says so in its own words, and torch stays."""
    make_wheel(small.wheels, "tilelang", TESTED, ABORTS, ["torch>=2.12"])
    typed = small.run(*SHORT)
    assert "  ERROR: ResolutionImpossible: " in typed.text
    assert typed.says(
        f"No step helped. Installed now: tilelang not there, apache-tvm-ffi not there, torch "
        f"{TORCH}, numpy {NUMPY}.",
        "no tilelang goes with the packages that are here; needed: a new virtual environment; "
        f"type: python -m venv ~/tilelang-tour && ~/tilelang-tour/bin/python "
        f"{ROOT}/tilelang_tour.py",
    )
    assert typed.ended_before_a_section("tilelang is not installed")


def test_a_torch_that_pip_does_not_know_is_not_replaced(tmp_path, shared):
    """pip would take it for missing."""
    machine = Machine(tmp_path, shared)
    machine.have_torch(SMALL_TORCH)
    machine.have_pip(MARKS)
    (metadata,) = machine.site.glob("torch-*.dist-info/METADATA")
    metadata.write_text("")
    typed = machine.run(*SHORT)
    assert typed.says(
        "pip does not know the torch that is here and would put another in its way; needed: a new "
        "virtual environment; type: python -m venv ~/tilelang-tour && ~/tilelang-tour/bin/python "
        f"{ROOT}/tilelang_tour.py"
    )
    assert typed.ended_before_a_section("tilelang is not installed")
    assert not (machine.site / "pip" / "called").exists()


# An empty machine


DRIVER = Path("/proc/driver/nvidia").exists()
without_driver = pytest.mark.skipif(DRIVER, reason="there is an NVIDIA driver here")


@without_driver
def test_an_empty_machine_without_a_driver(bare):
    """PyTorch's CPU builds first; pip finds one, here in a folder."""
    bare.offer("tilelang", TESTED)
    typed = bare.run(*SHORT)
    assert typed.says(
        "TileLang cannot be used yet: torch is not installed; needed: torch, tilelang, numpy and "
        "tabulate.",
        f"This takes torch, tilelang and what they need, into {bare.site}",
        "No NVIDIA driver is here: PyTorch's CPU build will do, about 0.3 GB in all.",
        "Installing torch: pip install torch --index-url https://download.pytorch.org/whl/cpu",
        "  Successfully installed torch-2.99.0",
        f"Installing the tested version: pip install tilelang=={TESTED} numpy tabulate",
        "  before: tilelang not there, apache-tvm-ffi not there, torch 2.99.0, numpy not there",
        f"  after:  tilelang {TESTED}, apache-tvm-ffi 0.1.12, torch 2.99.0, numpy 9.9",
        f"This helped: the tested version (tilelang missing -> {TESTED}, "
        "apache-tvm-ffi missing -> 0.1.12, numpy missing -> 9.9).",
    )
    assert typed.passed, typed.text


@without_driver
def test_an_empty_machine_that_does_not_reach_the_cpu_builds(bare):
    bare.offer("tilelang", TESTED)
    typed = bare.run(*SHORT, **bare.index())
    assert typed.says(
        "Installing torch: pip install torch --index-url https://download.pytorch.org/whl/cpu",
        "  no answer from an index, trying again",
        "  PyTorch's CPU builds cannot be had here: torch comes from the default index.",
        "  There it may bring CUDA along, about 3 GB to download.",
        f"Installing the tested version: pip install tilelang=={TESTED} torch numpy tabulate",
        f"This helped: the tested version (tilelang missing -> {TESTED}, apache-tvm-ffi missing -> "
        "0.1.12, torch missing -> 2.99.0, numpy missing -> 9.9).",
    )
    assert typed.passed, typed.text


def test_an_empty_machine_with_a_driver(bare):
    bare.program("nvidia-smi", "echo 'Tesla T4, 550.54.15, 15360, 7.5'")
    bare.offer("torch", "2.99.0", SMALL_TORCH)
    bare.offer("numpy", "9.9", "")
    bare.offer("tilelang", TESTED, ABORTS)
    typed = bare.run(*SHORT)
    assert typed.says(
        f"This takes torch, tilelang and what they need, into {bare.site}",
        "With torch's CUDA libraries about 3 GB are downloaded, once.",
        f"Installing the tested version: pip install tilelang=={TESTED} torch numpy tabulate",
    )
    assert "whl/cpu" not in typed.text and bare.versions["torch"] == "2.99.0"


@pytest.mark.slow
@without_driver
@pytest.mark.parametrize("minor", [10, 12, 13])
def test_an_empty_machine_with_another_python(bare, minor):
    """Its own pip, from its own ensurepip; there is no torch of its own to run a section with."""
    found = [shutil.which(f"python3.{minor}") or "nowhere"]
    found += Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")
    works = next((one for one in found if output_of(str(one), "-c", "") is not None), None)
    if works is None:
        pytest.skip(f"no Python 3.{minor} here")
    shutil.rmtree(bare.folder / "venv")
    subprocess.run([works, "-m", "venv", "--without-pip", bare.folder / "venv"], check=True)
    bare.offer("torch", "2.99.0", SMALL_TORCH)
    bare.offer("numpy", "9.9", "")
    bare.offer("tilelang", TESTED, ABORTS)
    typed = bare.run(*SHORT)
    assert typed.says(
        "This Python has no pip. Trying: python -m ensurepip",
        f"Installing the tested version: pip install tilelang=={TESTED} numpy tabulate",
        f"  after:  tilelang {TESTED}, apache-tvm-ffi 0.1.12, torch 2.99.0, numpy 9.9",
        "  It did not help: tilelang cannot be imported: killed by SIGABRT",
    )
    assert "Traceback" not in typed.text and typed.code == 1
    assert f"Python     3.{minor}." in bare.run("--check").text


# Places that refuse


def test_no_pip_then_ensurepip(machine):
    machine.have_torch(SMALL_TORCH)
    machine.offer("tilelang", TESTED, ABORTS)
    (machine.home / "random.py").write_text("raise SystemExit('not the one that is meant')")
    typed = machine.run(*SHORT)
    assert typed.says(
        "This Python has no pip. Trying: python -m ensurepip",
        HELD,
        f"Installing the tested version: pip install tilelang=={TESTED}",
        f"  Successfully installed apache-tvm-ffi-0.1.12 tilelang-{TESTED}",
    )
    assert typed.ended_before_a_section("tilelang cannot be imported: killed by SIGABRT")


def without_pip(machine) -> dict[str, str]:
    """Take pip and ensurepip away, as Debian does; returns variables that hide any uv."""
    machine.have_torch(SMALL_TORCH)
    machine.at_start("import sys\nsys.modules['ensurepip'] = None\n")
    return {"PATH": f"{machine.python.parent}:{machine.bin}", "CXX": shutil.which("g++")}


def test_no_pip_no_ensurepip_then_uv(machine):
    """The stand-in for uv hands its arguments to pip: they are those that both know."""
    variables = without_pip(machine)
    machine.offer("tilelang", TESTED, ABORTS)
    machine.program(
        "uv",
        f'[ "$1 $2 $3 $4" = "pip install --python {machine.python}" ] || exit 9; shift 4\n'
        f'PYTHONPATH={machine.shared.pip} exec {machine.python} -m pip install --retries 0 "$@"',
    )
    typed = machine.run(*SHORT, **variables)
    assert typed.says(
        "This Python has no pip. Trying: python -m ensurepip",
        "This Python has no pip; uv takes its place.",
        HELD,
        *before_and_after(
            "not there, apache-tvm-ffi not there", f"{TESTED}, apache-tvm-ffi 0.1.12"
        ),
    )
    assert typed.code == 1


def test_no_pip_no_ensurepip_no_uv(machine):
    variables = without_pip(machine)
    machine.program("apt-get", "")
    typed = machine.run(*SHORT, **variables)
    minor = sys.version_info[1]
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert typed.says(
        "this Python has no pip, and uv is not here either; needed: pip; type: "
        f"{sudo}apt-get install -y python3.{minor}-venv && python -m ensurepip && "
        f"python -m pip install tilelang=={TESTED}",
    )
    assert typed.ended_before_a_section("tilelang is not installed")


def of_the_system(machine) -> None:
    """Make the environment look like the operating system's own Python, and say hands off."""
    machine.at_start(
        "import sys\nsys.base_prefix, sys.base_exec_prefix = sys.prefix, sys.exec_prefix\n"
    )
    (machine.site.parent / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=no\n")


def test_a_python_of_the_operating_system(small):
    of_the_system(small)
    small.offer("tilelang", TESTED)
    typed = small.run(*SHORT)
    assert typed.says(
        "  error: externally-managed-environment",
        "this Python is not to be changed by pip (PEP 668); needed: a virtual environment; type: "
        "python -m venv ~/tilelang-tour && ~/tilelang-tour/bin/python "
        f"{ROOT}/tilelang_tour.py",
    )
    assert "break-system-packages" not in typed.text
    assert typed.ended_before_a_section("tilelang is not installed")


UNREACHABLE = (
    "no package index can be reached; needed: a network connection; "
    "type: python -m pip install tilelang==0.1.15"
)


@pytest.mark.parametrize("index", ["http://127.0.0.1:9/simple", ""])
def test_no_index_answers(small, index):
    """Neither one of the learner's own nor, behind the proxy that is down, the default one."""
    typed = small.run(*SHORT, PIP_INDEX_URL=index, PIP_NO_INDEX="", PIP_FIND_LINKS="")
    assert typed.says(
        HELD,
        f"Installing the tested version: pip install tilelang=={TESTED}",
        "  no answer from an index, trying again",
        f"  ERROR: No matching distribution found for tilelang=={TESTED}",
        UNREACHABLE,
    )
    assert typed.text.count("Installing the") == 1
    assert typed.ended_before_a_section("tilelang is not installed")
    assert float(re.search(r"not run in (\d+) s", typed.text)[1]) < 20


def test_a_folder_for_packages_that_cannot_be_written(small):
    """That is known before anything is downloaded."""
    small.offer("tilelang", TESTED)
    small.site.chmod(0o555)
    typed = small.run(*SHORT)
    small.site.chmod(0o755)
    assert typed.says(
        f"{small.site} cannot be written; needed: a virtual environment; type: python -m venv "
        f"~/tilelang-tour && ~/tilelang-tour/bin/python {ROOT}/tilelang_tour.py",
    )
    assert "Installing" not in typed.text
    assert typed.ended_before_a_section("tilelang is not installed")


@pytest.fixture
def healthy(machine) -> Machine:
    """A machine where all is well; its pip only tells that it was called."""
    machine.have_torch()
    machine.have("apache-tvm-ffi", "0.1.12")
    machine.have("tilelang", TESTED)
    machine.have_pip(MARKS)
    yield machine
    assert not (machine.site / "pip" / "called").exists(), "nothing was to be installed"


# Files that hide a package


def test_a_file_in_the_current_folder_hides_nothing(healthy):
    """The learner's folder is not where the worker lives, also where PYTHONPATH says "."."""
    for name in ("tilelang.py", "torch.py"):
        (healthy.home / name).write_text("import os; os.abort()")
    typed = healthy.run(*SHORT, PYTHONPATH=".")
    assert typed.passed and "is taken from" not in typed.text
    checked = healthy.run("--check", PYTHONPATH=".")
    assert checked.code == 0
    assert "problems   none" in checked.lines and "PYTHONPATH" not in checked.text


@pytest.mark.parametrize("program", [None, "notebook"])
def test_files_beside_the_tour_hide_nothing(healthy, program):
    """Not even Python's own modules, of which the tour needs these before it can say a word."""
    folder = healthy.copy_tour()
    for name in ("argparse", "random", "tempfile", "json", "dataclasses", "numpy", "torch",
                 "tilelang", "tabulate"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('not the {name} that is meant')")
    if program:
        program = healthy.home / "cell.py"
        program.write_text(
            f"import sys; sys.path.insert(0, {str(folder)!r})\n"
            f"import tilelang_tour; raise SystemExit(tilelang_tour.main({list(SHORT)}))"
        )
    typed = healthy.run(*SHORT, program=program)
    assert typed.passed and "is taken from" not in typed.text, typed.text


def test_an_editable_install_hides_nothing(healthy):
    """Its files lie outside the folder of packages, where its metadata says so."""
    source = healthy.folder / "source"
    source.symlink_to(healthy.shared.packages["tilelang"])
    (healthy.site / "real_tilelang.pth").write_text(f"{source}\n")
    (metadata,) = healthy.site.glob("tilelang-*.dist-info")
    (metadata / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///"}')
    typed = healthy.run("--check")
    assert typed.code == 0 and "problems   none" in typed.lines
    assert re.search(r"^tilelang   0.1.15, .*/source/tilelang/__init__.py$", typed.text, re.M)


def hide(machine, place: str, module: str = "tilelang") -> tuple[Path, dict[str, str]]:
    """Put a file in a package's way; returns it and the variables that make it do so."""
    folder = machine.folder / "other"
    folder.mkdir()
    (folder / f"{module}.py").write_text("import os; os.abort()")
    if place == "PYTHONPATH":
        return folder / f"{module}.py", {"PYTHONPATH": str(folder)}
    machine.at_start(f"import sys; sys.path.insert(0, {str(folder)!r})")
    return folder / f"{module}.py", {}


@pytest.mark.parametrize("place", ["PYTHONPATH", "sitecustomize"])
def test_a_file_that_hides_tilelang(small, place):
    small.have("apache-tvm-ffi", "0.1.12")
    small.have("tilelang", TESTED)
    small.offer("tilelang", TESTED)
    file, variables = hide(small, place)
    typed = small.run(*SHORT, **variables)
    away = "unset PYTHONPATH" if variables else f"mv {file} {file}.away"
    assert typed.says(
        "No other version can help: Python takes tilelang from elsewhere.",
        "importing tilelang ends the process (killed by SIGABRT), usually the fault of "
        f"apache-tvm-ffi, here 0.1.12, but tilelang is taken from {file}, which belongs to no "
        f"installed package; needed: the installed tilelang; type: {away}",
    )
    assert typed.text.count("Installing the") == 1
    assert typed.ended_before_a_section("tilelang cannot be imported: killed by SIGABRT")


@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_a_file_that_hides_what_tilelang_needs(machine, module):
    """No pip: it would get torch anew for nothing."""
    machine.have_torch(SMALL_TORCH)
    machine.have_pip(MARKS)
    file, _ = hide(machine, "sitecustomize", module)
    file.write_text("raise AttributeError('not what you want')")
    typed = machine.run(*SHORT)
    assert typed.lines[0].startswith(
        f"{module} is taken from {file}, which belongs to no installed package"
    )
    assert typed.lines[0].endswith(
        f"; needed: the installed {module}; type: mv {file} {file}.away"
    )
    assert typed.ended_before_a_section(
        "torch cannot be imported: AttributeError: not what you want"
    )
    assert not (machine.site / "pip" / "called").exists()


# --check and --no-install


def missing_tilelang(machine) -> str:
    return (
        f"tilelang is not installed; needed: tilelang 0.1.13 or newer, tested with {TESTED}; "
        f"type: python -m pip install tilelang=={TESTED}"
    )


def aborting_tilelang(machine) -> str:
    machine.have("apache-tvm-ffi", "0.1.12")
    machine.have("tilelang", TESTED, ABORTS)
    return (
        f"importing tilelang {TESTED} ends the process (killed by SIGABRT), usually the fault of "
        "apache-tvm-ffi, here 0.1.12; needed: apache-tvm-ffi<0.1.13,>=0.1.11; type: python -m pip "
        f"install --force-reinstall --no-deps tilelang=={TESTED} apache-tvm-ffi==0.1.12"
    )


def wrong_library(machine) -> str:
    machine.have("apache-tvm-ffi", "0.1.13", ABORTS)
    machine.have("tilelang", TESTED, "import tvm_ffi")
    return (
        f"importing tilelang {TESTED} ends the process (killed by SIGABRT), usually the fault of "
        "apache-tvm-ffi, here 0.1.13; needed: apache-tvm-ffi<0.1.13,>=0.1.11; type: python -m pip "
        f"install tilelang=={TESTED}"
    )


def failing_tilelang(machine) -> str:
    machine.have("apache-tvm-ffi", "0.1.12")
    machine.have("tilelang", "0.1.14", "raise ImportError('libz3.so: cannot open')")
    return (
        "tilelang 0.1.14 cannot be imported: ImportError: libz3.so: cannot open; needed: a "
        f"tilelang that imports; type: python -m pip install tilelang=={TESTED}"
    )


def hidden_tilelang(machine) -> str:
    file, _ = hide(machine, "sitecustomize")
    return (
        "importing tilelang ends the process (killed by SIGABRT), usually the fault of "
        f"apache-tvm-ffi, here not installed, but tilelang is taken from {file}, which belongs to "
        f"no installed package; needed: the installed tilelang; type: mv {file} {file}.away"
    )


def broken_torch(machine) -> str:
    shutil.rmtree(machine.site / "torch")
    return (
        f"torch {TORCH} cannot be imported: ModuleNotFoundError: No module named 'torch'; needed: "
        f"a torch that imports; type: python -m pip install --force-reinstall torch=={TORCH} "
        "--index-url https://download.pytorch.org/whl/cu128"
    )


def no_compiler(machine) -> str:
    return (
        "CXX=/nowhere does not run: no kernel can be compiled, for a GPU or for the CPU; "
        "needed: a C++ compiler; type: unset CXX"
    )


def no_pip(machine) -> str:
    shutil.rmtree(machine.site / "pip")
    return (
        f"tilelang is not installed; needed: tilelang 0.1.13 or newer, tested with {TESTED}; "
        f"type: python -m ensurepip && python -m pip install tilelang=={TESTED}"
    )


def managed_python(machine) -> str:
    of_the_system(machine)
    return (
        f"tilelang is not installed; needed: tilelang 0.1.13 or newer, tested with {TESTED}; type: "
        f"python -m venv ~/tilelang-tour && ~/tilelang-tour/bin/python {ROOT}/tilelang_tour.py"
    )


STATES = (
    missing_tilelang, aborting_tilelang, wrong_library, failing_tilelang, hidden_tilelang,
    broken_torch, no_compiler, no_pip, managed_python,
)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_check_and_no_install_name_it_and_leave_pip_alone(machine, state):
    machine.have_torch(SMALL_TORCH)
    machine.have_pip(MARKS)
    problem = state(machine)
    variables = {"CXX": "/nowhere"} if state is no_compiler else {}
    checked = machine.run("--check", **variables)
    assert checked.code == 1
    assert squeezed(f"problem 1 {problem}") in squeezed(checked.told)  # a long path is broken
    assert checked.lines[0] == "What the TileLang tour finds here"
    assert any(line.startswith("mode       none: ") for line in checked.lines[-3:])
    assert len(checked.lines) <= HEIGHT and max(map(len, checked.lines)) <= WIDTH
    typed = machine.run(*SHORT, "--no-install", **variables)
    assert typed.lines[0] == problem and typed.code == 1
    assert statuses(typed) == {"NOT RUN"}
    assert not (machine.site / "pip" / "called").exists()


def squeezed(text: str) -> str:
    return "".join(text.split())


def statuses(typed: Typed) -> set[str]:
    """The statuses of the summary's rows."""
    return set(re.findall(r"^\w+ +(PASS|FAIL|SKIP|CRASH|NOT RUN)  ", typed.text, re.MULTILINE))


def test_an_empty_machine_is_checked(bare):
    shutil.rmtree(bare.wheels)
    typed = bare.run("--check")
    assert typed.code == 1
    assert typed.says("torch      not installed", "numpy      not installed")
    without_cuda = "" if DRIVER else "--extra-index-url https://download.pytorch.org/whl/cpu "
    assert (
        "problem 1 torch is not installed; needed: torch, tilelang, numpy and tabulate; "
        f"type: python -m pip install -r {ROOT}/requirements.txt {without_cuda}mode"
    ) in typed.told
    assert typed.lines[-1] == "mode       none: torch is not installed"


# The GPU and the compilers


def test_no_gpu_is_no_reason_to_install(healthy):
    """The rehearsal runs unasked; in Colab it is told where a GPU may be had."""
    typed = healthy.run(*AUTO, COLAB_RELEASE_TAG="release", CUDA_VISIBLE_DEVICES="-1")
    assert typed.lines[0].startswith("TileLang tour: CPU rehearsal, no GPU is used.")
    assert typed.passed, typed.text
    if not DRIVER:
        assert typed.says(
            "note: this Colab session has no GPU; needed: one, to time kernels on; the CPU "
            "rehearsal runs; type: Runtime > Change runtime type > T4 GPU"
        )


def test_an_old_nvcc_costs_the_rehearsal_registers_only(healthy):
    toolkit = healthy.folder / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text("#!/bin/sh\necho 'release 11.8, V11.8.89'\n")
    (toolkit / "bin" / "nvcc").chmod(0o755)
    typed = healthy.run(*SHORT, CUDA_HOME=str(toolkit))
    assert typed.says(
        f"note: nvcc 11.8.89 in {toolkit}: registers are left out, all else runs; "
        "needed: nvcc 12.0 or newer; type: python -m pip install 'tilelang[nvcc]'"
    )
    assert typed.passed, typed.text


def test_a_driver_too_old_for_torch(machine):
    """Not the same as no GPU."""
    machine.program("nvidia-smi", "echo 'Tesla T4, 535.104.05, 15360, 7.5'")
    old = SMALL_TORCH.replace("cuda = None", "cuda = '13.0'").replace(
        "return False",
        "import warnings; warnings.warn('The NVIDIA driver on your system is too old'); "
        "return False",
    )
    machine.have_torch(old)
    machine.have_pip(MARKS)
    typed = machine.run("--check")
    assert typed.code == 1
    assert f"too old for torch {TORCH}, built for CUDA 13.0; needed: driver 580" in typed.told
    assert "no CUDA device" not in typed.text
    assert not (machine.site / "pip" / "called").exists()


def test_a_gpu_older_than_the_tour(machine):
    """One line, and the rehearsal is offered."""
    machine.program("nvidia-smi", "echo 'Tesla V100-SXM2-16GB, 580.159, 16384, 7.0'")
    volta = SMALL_TORCH.replace("return False", "return True") + (
        "    def get_device_properties(index):\n"
        "        class found: name, major, minor = 'Tesla V100-SXM2-16GB', 7, 0\n"
        "        return found\n"
    )
    machine.have_torch(volta)
    machine.have_pip(MARKS)
    typed = machine.run("--check")
    assert (
        "Tesla V100-SXM2-16GB is sm_70; needed: sm_75 or newer (T4, RTX 20 and on) for the GPU "
        f"modes; the CPU rehearsal runs; type: python {ROOT}/tilelang_tour.py --device cpu"
    ) in typed.told
    assert typed.code == 1  # tilelang is missing, too
    assert not (machine.site / "pip" / "called").exists()


# A notebook


def test_a_torch_that_changed_under_a_notebook(tmp_path, shared):
    """What is in memory and what is on disk do not fit; nothing is run."""
    machine = Machine(tmp_path, shared)
    machine.have_torch(SMALL_TORCH)
    machine.offer("tilelang", TESTED, ABORTS)
    (wheel,) = machine.wheels.glob("tilelang-*")
    machine.have_pip(REPLACES_TORCH.format(wheel=str(wheel)))
    cell = machine.home / "cell.py"
    cell.write_text(
        "import sys, types\n"
        "sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n"
        "import torch\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import tilelang_tour\n"
        "print('code', tilelang_tour.main([]))\n"
    )
    typed = machine.run("-f", "kernel.json", program=cell, COLAB_RELEASE_TAG="release")
    assert typed.says(
        HELD,
        f"Installing the tested version: pip install tilelang=={TESTED}",
        "  torch was to be held and changed all the same.",
        f"a package that this notebook uses was replaced (torch {TORCH} -> 2.99.0); needed: a "
        "restart; type: Runtime > Restart session, then run the cell again",
        "code 1",
    )
    assert typed.text.count("Installing the") == 1 and "A fresh worker" not in typed.text
    assert statuses(typed) == {"NOT RUN"} and typed.text.count("NOT RUN  ") == 8
