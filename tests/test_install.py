"""Real pip, tiny wheels: what is installed, what is left alone, and what a learner reads."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sections.runner import install
from sections.runner.installed import installed
from tests import made_facts
from tests.made_wheels import (
    ABORTS,
    CANNOT_COMPILE,
    NEEDS_RIGHT_FFI,
    WORKS,
    make_environment,
    make_wheel,
    probe_with,
    site_packages,
)

TILELANG_NEEDS = ("apache-tvm-ffi<0.1.13,>=0.1.11", "torch", "numpy>=1.23.5")


@pytest.fixture(scope="session")
def pip_from(tmp_path_factory) -> Path:
    """A site-packages folder with a pip that all the small environments share."""
    folder = tmp_path_factory.mktemp("pip")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return site_packages(folder)


class Shop:
    """A folder of wheels that pip may take, an environment, and what was said."""

    def __init__(self, folder: Path, pip_from: Path):
        self.folder, self.pip_from = folder, pip_from
        self.lines: list[str] = []
        for name, version in (("apache-tvm-ffi", "0.1.12"), ("tabulate", "0.9.0")):
            self.offer(name, version)
        self.offer("torch", "2.13.0")
        self.offer("numpy", "2.4.6")

    def offer(self, name, version, code="", needs=(), folder="wheels") -> Path:
        """Put a wheel where pip finds it."""
        return make_wheel(self.folder / folder, name, version, code, needs)

    def offer_tilelang(self, version, code, folder="wheels") -> Path:
        return self.offer("tilelang", version, code, TILELANG_NEEDS, folder)

    def wheel(self, name, version, code="", needs=()) -> Path:
        """A wheel that pip does not find."""
        return self.offer(name, version, code, needs, folder="elsewhere")

    def open(self, *packages, pip=True, colab=True) -> Path:
        """An environment with torch and numpy as Colab has them, and these packages."""
        mine = [self.wheel("tabulate", "0.9.0")]
        if colab:
            mine += [self.wheel("torch", "2.11.0+cu128"), self.wheel("numpy", "2.1.3")]
        self.python = make_environment(
            self.folder / "venv", self.pip_from if pip else None, [*mine, *packages]
        )
        return self.python

    def make_usable(self, **options) -> install.Outcome:
        """Run the code under test against the environment."""
        known = {**made_facts.facts(command=str(self.python)), **installed(self.python)}
        return install.make_usable(
            {**known, **options.pop("facts", {})},
            self.probe(),
            self.probe,
            self.lines.append,
            python=str(self.python),
            **options,
        )

    def probe(self):
        return probe_with(self.python)

    @property
    def versions(self) -> dict:
        return installed(self.python)["versions"]

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def shop(tmp_path, pip_from, monkeypatch) -> Shop:
    for name in ("PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(install.ROOT)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(install, "NIGHTLY", str(tmp_path / "nightly"))
    return Shop(tmp_path, pip_from)


def test_a_missing_tilelang_is_installed_and_torch_and_numpy_stay(shop):
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open()
    outcome = shop.make_usable()
    assert outcome.usable and outcome.helped == "the tested version"
    assert shop.lines == [
        "TileLang cannot be used yet: tilelang is not installed; "
        "needed: tilelang 0.1.13 or newer, tested with 0.1.15.",
        "Held as they are: torch 2.11.0+cu128, numpy 2.1.3.",
        "Installing the tested version: pip install tilelang==0.1.15",
        "  Installing collected packages: apache-tvm-ffi, tilelang",
        "  Successfully installed apache-tvm-ffi-0.1.12 tilelang-0.1.15",
        "  before: tilelang not there, apache-tvm-ffi not there, torch 2.11.0+cu128, numpy 2.1.3",
        "  after:  tilelang 0.1.15, apache-tvm-ffi 0.1.12, torch 2.11.0+cu128, numpy 2.1.3",
        "  A fresh worker tries TileLang ...",
        "This helped: the tested version (tilelang missing -> 0.1.15, "
        "apache-tvm-ffi missing -> 0.1.12).",
    ]


def test_an_abort_through_a_wrong_dependency_is_named_and_only_that_is_replaced(shop):
    tilelang = shop.offer_tilelang("0.1.15", NEEDS_RIGHT_FFI)
    shop.open(tilelang, shop.wheel("apache-tvm-ffi", "0.1.9"))
    outcome = shop.make_usable()
    assert outcome.usable
    assert (
        "importing tilelang 0.1.15 ends the process (killed by SIGABRT), usually the fault of "
        "apache-tvm-ffi, here 0.1.9; needed: apache-tvm-ffi<0.1.13,>=0.1.11." in shop.said
    )
    assert shop.lines[-1] == "This helped: the tested version (apache-tvm-ffi 0.1.9 -> 0.1.12)."
    assert shop.versions["torch"] == "2.11.0+cu128" and shop.versions["numpy"] == "2.1.3"


def test_damaged_files_of_the_right_version_are_installed_anew(shop):
    tilelang = shop.offer_tilelang("0.1.15", WORKS)
    shop.open(tilelang, shop.folder / "wheels" / "apache_tvm_ffi-0.1.12-py3-none-any.whl")
    Path(site_packages(shop.folder / "venv"), "tilelang", "__init__.py").write_text(ABORTS)
    outcome = shop.make_usable()
    assert outcome.helped == "the tested version and its libraries anew"
    assert "  This changed nothing: tilelang 0.1.15 is here already." in shop.lines
    assert (
        "Installing the tested version and its libraries anew: pip install --force-reinstall "
        "--no-deps tilelang==0.1.15 apache-tvm-ffi==0.1.12" in shop.lines
    )
    assert shop.said.count("A fresh worker tries") == 1
    assert shop.versions["torch"] == "2.11.0+cu128" and shop.versions["numpy"] == "2.1.3"


def test_no_tested_version_on_the_index_then_the_newest(shop):
    shop.offer_tilelang("0.1.16", WORKS)
    shop.open()
    outcome = shop.make_usable()
    assert outcome.helped == "the newest version"
    assert (
        "  ERROR: Could not find a version that satisfies the requirement tilelang==0.1.15 "
        "(from versions: 0.1.16)" in shop.lines
    )
    assert shop.versions["tilelang"] == "0.1.16"


def test_imports_but_cannot_compile_and_an_older_nightly_changes_nothing(shop):
    shop.offer_tilelang("0.1.15", CANNOT_COMPILE)
    shop.offer_tilelang("0.1.16", CANNOT_COMPILE)
    shop.offer_tilelang("0.1.16.dev1", WORKS, folder="nightly")
    shop.open()
    outcome = shop.make_usable()
    assert not outcome.usable and outcome.helped is None
    failed = (
        "tilelang imports but cannot compile and run a kernel: "
        "AttributeError: module 'tvm' has no attribute 'build'"
    )
    assert shop.lines.count(f"  It did not help: {failed}") == 2
    assert shop.lines[-3:] == [
        "  This changed nothing: nothing newer than tilelang 0.1.16 is offered.",
        "No step helped. Installed now: tilelang 0.1.16, apache-tvm-ffi 0.1.12, "
        "torch 2.11.0+cu128, numpy 2.1.3.",
        outcome.diagnosis,
    ]
    assert outcome.diagnosis.startswith("tilelang 0.1.16 imports but cannot compile")
    assert f"type: {shop.python} -m venv ~/tilelang-tour && " in outcome.diagnosis


def test_the_nightly_helps_where_the_releases_do_not(shop):
    shop.offer_tilelang("0.1.15", CANNOT_COMPILE)
    shop.offer_tilelang("0.1.16.dev1", WORKS, folder="nightly")
    shop.open()
    outcome = shop.make_usable()
    assert outcome.usable
    assert shop.lines[-1] == "This helped: the nightly (tilelang 0.1.15 -> 0.1.16.dev1)."
    assert shop.versions["torch"] == "2.11.0+cu128" and shop.versions["numpy"] == "2.1.3"


def test_a_release_that_wants_another_numpy_is_refused_in_pips_words(shop):
    shop.offer("tilelang", "0.1.15", WORKS, ["numpy>=3"])
    shop.open()
    outcome = shop.make_usable()
    assert not outcome.usable
    assert shop.versions["numpy"] == "2.1.3"
    assert "  ERROR: " in shop.said and "conflict" in shop.said.lower()


def test_an_empty_machine_gets_torch_first_then_the_rest(shop):
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open(colab=False)
    outcome = shop.make_usable()
    assert outcome.usable
    assert shop.lines[:4] == [
        "TileLang cannot be used yet: torch is not installed; "
        "needed: torch, tilelang, numpy and tabulate.",
        f"This takes torch, tilelang and what they need, into {installed(shop.python)['site']}",
        "No NVIDIA driver is here: PyTorch's CPU build will do, about 0.3 GB in all.",
        "Installing torch: pip install torch --index-url https://download.pytorch.org/whl/cpu",
    ]
    assert "Installing the tested version: pip install tilelang==0.1.15 numpy" in shop.lines
    assert shop.versions["torch"] == "2.13.0" and shop.versions["numpy"] == "2.4.6"


def test_an_empty_machine_whose_cpu_index_is_out_of_reach(shop, monkeypatch):
    shop.offer_tilelang("0.1.15", WORKS)
    index_of(shop, monkeypatch)
    monkeypatch.setattr(install, "TORCH_CPU", "http://127.0.0.1:9/cpu")
    shop.open(colab=False)
    outcome = shop.make_usable()
    assert outcome.usable
    assert (
        "  PyTorch's CPU builds cannot be had here: torch comes from the default index."
        in shop.lines
    )
    assert "Installing the tested version: pip install tilelang==0.1.15 torch numpy" in shop.lines


def test_an_empty_machine_with_a_driver_takes_torch_with_cuda(shop):
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open(colab=False)
    outcome = shop.make_usable(facts={"driver": "580.159"})
    assert outcome.usable
    assert "With torch's CUDA libraries about 3 GB are downloaded, once." in shop.lines
    assert "whl/cpu" not in shop.said


def index_of(shop, monkeypatch) -> None:
    """Offer the wheels through a package index instead of a folder."""
    for wheel in (shop.folder / "wheels").iterdir():
        project = wheel.name.split("-")[0].replace("_", "-")
        folder = shop.folder / "simple" / project
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, folder)
        links = [f'<a href="{file.name}">{file.name}</a>' for file in folder.glob("*.whl")]
        (folder / "index.html").write_text("<!DOCTYPE html>" + "".join(links))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (shop.folder / "simple").as_uri())


def test_the_users_constraint_is_kept(shop, monkeypatch):
    shop.offer_tilelang("0.1.15", WORKS)
    shop.offer("torch", "2.12.0")
    constraint = shop.folder / "mine.txt"
    constraint.write_text("torch==2.12.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraint))
    shop.open(colab=False)
    assert shop.make_usable().usable
    assert shop.versions["torch"] == "2.12.0"


def test_no_network_is_one_line_and_ends_it(shop, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    shop.open()
    start = time.monotonic()
    outcome = shop.make_usable()
    assert time.monotonic() - start < 20
    assert (
        outcome.diagnosis
        == shop.lines[-1]
        == (
            "no package index can be reached; needed: a network connection; "
            f"type: {shop.python} -m pip install tilelang==0.1.15"
        )
    )
    assert shop.said.count("Installing the") == 1


def test_a_python_without_pip_gets_it_from_ensurepip(shop):
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open(pip=False)
    outcome = shop.make_usable()
    assert outcome.usable
    assert f"This Python has no pip. Trying: {shop.python} -m ensurepip" in shop.lines


def without_ensurepip(shop) -> None:
    """Take ensurepip away, as Debian does."""
    code = "import sys\nsys.modules['ensurepip'] = None\n"
    Path(site_packages(shop.folder / "venv"), "sitecustomize.py").write_text(code)


def test_no_pip_at_all_ends_with_what_to_type(shop, monkeypatch):
    shop.open(pip=False)
    without_ensurepip(shop)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    outcome = shop.make_usable()
    assert not outcome.usable
    assert outcome.diagnosis == (
        "this Python has no pip, and uv is not here either; needed: pip; "
        f"type: apt-get install -y python3.13-venv && {shop.python} -m ensurepip && "
        f"{shop.python} -m pip install tilelang==0.1.15"
    )


def test_uv_takes_the_place_of_a_missing_pip(shop, monkeypatch):
    """The stand-in for uv hands its arguments to pip: they are the ones that both know."""
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open(pip=False)
    without_ensurepip(shop)
    uv = shop.folder / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3 $4" = "pip install --python {shop.python}" ] || exit 9\nshift 4\n'
        f'PYTHONPATH={shop.pip_from} exec {shop.python} -m pip install "$@"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    outcome = shop.make_usable()
    assert outcome.usable
    assert "This Python has no pip; uv takes its place." in shop.lines
    assert shop.versions["torch"] == "2.11.0+cu128"


def outside_an_environment(shop) -> Path:
    """Make the environment look like a Python that is none; returns its folder of modules."""
    packages = site_packages(shop.folder / "venv")
    pretend = "import sys\nsys.base_prefix, sys.base_exec_prefix = sys.prefix, sys.exec_prefix\n"
    (packages / "sitecustomize.py").write_text(pretend)
    return packages.parent


def in_an_environment(shop) -> str:
    """The command that is told where this Python cannot or may not be changed."""
    tour = "~/tilelang-tour/bin/python tilelang_tour.py"
    return f"{shop.python} -m venv ~/tilelang-tour && {tour}"


def test_a_python_of_the_operating_system_is_left_alone(shop):
    shop.open()
    marker = outside_an_environment(shop) / "EXTERNALLY-MANAGED"
    marker.write_text("[externally-managed]\nError=no\n")
    outcome = shop.make_usable()
    assert not outcome.usable
    assert "  error: externally-managed-environment" in shop.lines
    assert outcome.diagnosis == (
        "this Python is not to be changed by pip (PEP 668); needed: a virtual environment; "
        f"type: {in_an_environment(shop)}"
    )
    assert "break-system-packages" not in shop.said


def test_a_pip_that_is_to_work_in_environments_alone(shop, monkeypatch):
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    shop.open()
    outside_an_environment(shop)
    outcome = shop.make_usable()
    assert not outcome.usable
    assert "  ERROR: Could not find an activated virtualenv (required)." in shop.lines
    assert outcome.diagnosis == shop.lines[-1]
    assert outcome.diagnosis.startswith(
        "this Python is not to be changed by pip (PIP_REQUIRE_VIRTUALENV); ")
    assert outcome.diagnosis.endswith(
        f"; needed: a virtual environment; type: {in_an_environment(shop)}"
    )
    assert shop.said.count("Installing the") == 1


def stand_in_pip(shop, code: str) -> None:
    """A pip that does what the code says."""
    shop.open(pip=False)
    folder = Path(site_packages(shop.folder / "venv"), "pip")
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(code)


def test_a_folder_that_cannot_be_written(shop):
    stand_in_pip(
        shop,
        'print("ERROR: Could not install packages due to an OSError: '
        "[Errno 13] Permission denied: '/usr/lib'\")\nraise SystemExit(1)",
    )
    outcome = shop.make_usable()
    site = installed(shop.python)["site"]
    assert outcome.diagnosis.startswith(
        f"{site} cannot be written; needed: a virtual environment; type: {shop.python} -m venv"
    )
    assert shop.said.count("Installing the") == 1


@pytest.mark.parametrize("says", ["[Errno 28] No space left on device",
                                  "[Errno 122] Disk quota exceeded"])
def test_a_disk_that_is_full(shop, says):
    stand_in_pip(
        shop,
        'print("ERROR: Could not install packages due to an OSError: '
        f'{says}")\nraise SystemExit(1)',
    )
    outcome = shop.make_usable()
    site = installed(shop.python)["site"]
    assert not outcome.usable
    assert (
        outcome.diagnosis
        == shop.lines[-1]
        == f"no space left for {site}, or for pip's temporary files in {tempfile.gettempdir()}; "
        f"needed: about 1 GB; type: df -h {site} {tempfile.gettempdir()}"
    )
    assert shop.said.count("Installing the") == 1


@pytest.mark.parametrize("managed", [False, True], ids=["venv", "system"])
def test_a_pip_that_fails_for_no_known_reason(shop, monkeypatch, managed):
    """Each step is tried, and ends with what to type; no rule of pip's is broken to get there."""
    monkeypatch.delenv("PIP_BREAK_SYSTEM_PACKAGES", raising=False)
    asked = shop.folder / "asked"
    stand_in_pip(
        shop,
        "import os, sys\n"
        "told = [name for name in os.environ if name.startswith('PIP_')]\n"
        f"print(sys.argv, told, file=open({str(asked)!r}, 'a'))\n"
        "raise SystemExit('the moon is in the wrong house')",
    )
    if managed:
        (outside_an_environment(shop) / "EXTERNALLY-MANAGED").touch()
    outcome = shop.make_usable()
    assert not outcome.usable and outcome.helped is None
    again = in_an_environment(shop) if managed else f"{shop.python} -m pip install tilelang"
    assert (
        outcome.diagnosis
        == shop.lines[-1]
        == (
            "no tilelang could be installed; needed: what pip says above: often a wheel for this "
            f"system, Linux, Python 3.10 or up; type: {again}"
        )
    )
    assert shop.lines.count("  the moon is in the wrong house") == 3
    calls = asked.read_text().lower().replace("_", "-")
    assert calls.count("\n") == 3
    for unasked in ("break-system-packages", "--user", "--target", "--ignore-installed", "--force"):
        assert unasked not in calls and unasked not in shop.said


def test_a_pip_that_hangs_is_stopped_and_waiting_is_shown(shop, monkeypatch):
    stand_in_pip(shop, "import time\ntime.sleep(60)")
    monkeypatch.setattr(install, "LIMIT", 1.2)
    monkeypatch.setattr(install, "SILENCE", 0.5)
    start = time.monotonic()
    outcome = shop.make_usable()
    assert time.monotonic() - start < 10
    assert any(line.startswith("  ... still at it after ") for line in shop.lines)
    assert outcome.diagnosis.startswith("pip was not done after 1 s and was stopped; needed: ")


@pytest.mark.parametrize("code, cause", [
    (WORKS, ""), (ABORTS, "tilelang cannot be imported: killed by SIGABRT"),
])
def test_what_a_stopped_pip_has_left_behind_is_tried(code, cause, shop, monkeypatch):
    wheels = [shop.offer_tilelang("0.1.15", code), shop.wheel("apache-tvm-ffi", "0.1.12")]
    stand_in_pip(
        shop,
        f"import pathlib, time, zipfile\n"
        f"for wheel in {list(map(str, wheels))}:\n"
        f"    zipfile.ZipFile(wheel).extractall(pathlib.Path(__file__).parents[1])\n"
        f"time.sleep(60)",
    )
    monkeypatch.setattr(install, "LIMIT", 3)
    outcome = shop.make_usable()
    assert (outcome.usable, outcome.cause) == (not cause, cause)
    said = shop.lines[-1]
    assert said == ("TileLang can be used all the same." if outcome.usable else outcome.diagnosis)


def test_downloads_are_shown_in_short():
    line = (
        "  Downloading tilelang-0.1.15-cp39-abi3-manylinux_2_27_x86_64"
        ".manylinux_2_28_x86_64.whl (49.6 MB)"
    )
    assert install._news(line) == "downloading tilelang-0.1.15 (49.6 MB)"
    assert install._news(line.replace(".whl", ".whl.metadata")) is None
    assert install._news("Downloading apache-tvm-ffi (2.7MiB)") == (
        "downloading apache-tvm-ffi (2.7MiB)"
    )
    assert install._news("Collecting tilelang==0.1.15") is None


@pytest.mark.parametrize("package, before", [("torch", "2.11.0+cu128"), ("numpy", "2.1.3")])
@pytest.mark.parametrize("module", ["the package", "ipykernel"])
def test_a_torch_or_numpy_that_changed_in_a_notebook_asks_for_a_restart(
    shop, monkeypatch, package, before, module
):
    """A pip that does not hold it: what is in memory and on disk would not fit."""
    shop.offer_tilelang("0.1.15", WORKS)
    stand_in_pip(
        shop,
        "import pathlib, sys, zipfile\n"
        "site = pathlib.Path(__file__).parents[1]\n"
        f"old = next(site.glob('{package}-*.dist-info'))\n"
        f"old.rename(site / '{package}-2.13.0.dist-info')\n"
        f"(site / '{package}-2.13.0.dist-info' / 'METADATA').write_text("
        f"'Metadata-Version: 2.1\\nName: {package}\\nVersion: 2.13.0\\n')\n"
        f"zipfile.ZipFile({str(shop.folder / 'wheels/tilelang-0.1.15-py3-none-any.whl')!r})"
        ".extractall(site)\n",
    )
    in_memory = {package if module == "the package" else module: object()}
    monkeypatch.setattr(install, "sys", SimpleNamespace(modules=in_memory))
    outcome = shop.make_usable(facts={"colab": True})
    assert outcome.restart and not outcome.usable
    assert f"  {package} was to be held and changed all the same." in shop.lines
    assert shop.said.count("Installing the") == 1 and "A fresh worker" not in shop.said
    assert (
        outcome.diagnosis
        == shop.lines[-1]
        == (
            f"a package that this notebook uses was replaced ({package} {before} -> 2.13.0); "
            "needed: a restart; type: Runtime > Restart session, then run the cell again"
        )
    )


def test_a_local_tilelang_that_hides_the_installed_one(shop, monkeypatch):
    """Installing is tried once; no other version can help while Python takes this one."""
    shop.offer_tilelang("0.1.15", WORKS)
    shop.open()
    local = shop.folder / "mine" / "tilelang"
    local.mkdir(parents=True)
    (local / "__init__.py").write_text(ABORTS)
    monkeypatch.setenv("PYTHONPATH", str(local.parent))
    outcome = shop.make_usable()
    assert not outcome.usable
    assert "No other version can help: Python takes tilelang from elsewhere." in shop.lines
    assert outcome.diagnosis == (
        "importing tilelang ends the process (killed by SIGABRT), usually the fault of "
        f"apache-tvm-ffi, here 0.1.12, but tilelang is taken from {local}/__init__.py, which "
        "belongs to no installed package; needed: the installed tilelang; type: unset PYTHONPATH"
    )
    assert shop.said.count("Installing the") == 1


def never(*_):
    raise AssertionError("nothing was to be started")


def test_no_install_only_says_what_to_type():
    said = []
    found = made_facts.failing(
        made_facts.probe("device"), "ModuleNotFoundError: No module named 'tilelang'"
    )
    known = made_facts.facts(versions={"torch": "2.13.0+cpu"})
    outcome = install.make_usable(
        known, found, never, said.append, allow_install=False, python="/nowhere"
    )
    assert not outcome.usable
    assert said == [
        "tilelang is not installed; needed: tilelang 0.1.13 or newer, tested with 0.1.15; "
        "type: python -m pip install tilelang==0.1.15"
    ]


def test_what_no_tilelang_can_mend_is_not_met_with_pip():
    said = []
    known = made_facts.facts(compiler="", compiler_from="", compiler_version=None)
    found = made_facts.failing(made_facts.probe("tilelang"), "TypeError: NoneType")
    outcome = install.make_usable(known, found, never, said.append, python="/nowhere")
    assert (
        outcome.diagnosis
        == said[0]
        == (
            "no C++ compiler: no kernel can be compiled, for a GPU or for the CPU; "
            "needed: g++ or clang++; type: apt-get install -y g++"
        )
    )
    assert len(said) == 1
