"""Real installs of a bundle's requirements, with virtual environments, pip, locks, signals and local wheels."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import numpy
import psutil
import pytest
from study_lab import wait_for

import mops
from mops.errors import InstallError
from mops.task import JobContext
from mops.worker.install import Installed, environments, install
from mops.worker.pool import Pool
from wheels import wheel

HOST = socket.gethostname()
RUNNER = str(Path(mops.__file__).parents[1])
PROGRAM = """
import sys
from pathlib import Path
from mops.worker.install import install
from mops.task import JobContext
context = JobContext("job", "1", "bundle", "storage", "model:run", "baseline", (), None, slots=1, install_s=60)
made = install(context, Path(sys.argv[1]), lambda: False)
print(made.python, made.said, sep="\\n")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ignore the pip configuration of this machine."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bundle that contains wheels. tiny 1.0 has no dependencies."""
    folder = tmp_path / "bundle"
    wheel(folder / "wheels", "tiny", "1.0", tiny="VALUE = 'installed'\n")
    return folder


@pytest.fixture
def silent_index() -> Iterator[str]:
    """A package index that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://user:c2VjcmV0@127.0.0.1:{listening.getsockname()[1]}/simple"


def context(bundle: str = "bundle", install_s: float = 120.0, **env: str) -> JobContext:
    return JobContext(
        "job", "1", bundle, "storage", "model:run", "baseline", (), None, slots=1, env=env, install_s=install_s
    )


def write(root: Path, *lines: str, file: str = "requirements.txt") -> None:
    (root / file).write_text("".join(f"{line}\n" for line in lines))


def from_wheels(root: Path, *lines: str) -> None:
    write(root, "--no-index", "--find-links wheels", *lines)


def have(root: Path, given: JobContext | None = None) -> Installed:
    found = install(given or context(), root, lambda: False)
    assert found is not None
    return found


def ask(python: str, program: str) -> list[str]:
    """Return the words that a program prints when an environment's interpreter runs it."""
    ran = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.split()


def refusal(root: Path, given: JobContext | None = None) -> InstallError:
    with pytest.raises(InstallError) as raised:
        install(given or context(), root, lambda: False)
    assert list(environments().glob("*/")) == [], "nothing is left of it"
    assert raised.value.exit_code == 2
    return raised.value


def command(*arguments: str, python: str = "{python}") -> str:
    options = "--no-input --no-user --disable-pip-version-check --progress-bar off"
    return " ".join([python, "-P -m pip install", options, *arguments])


def python_of(refused: InstallError) -> str:
    assert refused.where is not None
    path = refused.where.removeprefix(f"{HOST}: ").split()[0]
    assert Path(path).is_relative_to(environments())
    return path


HINT = (
    "hint: correct requirements.txt or the workers' PIP_INDEX_URL, or set MODELOPS_JOB_INSTALL=never to use the "
    "workers' packages"
)


def test_a_newer_version_wins_and_the_workers_packages_stay(root: Path) -> None:
    """This test runs in a virtual environment, like many workers."""
    assert sys.prefix != sys.base_prefix
    wheel(root / "wheels", "pathspec", "99.0", pathspec="VERSION = 'ninety-nine'\n")
    from_wheels(root, "pathspec>=99", "numpy", "tiny")
    for module in ("pip", "json", "venv", "site"):  # modules of the project must not shadow those of the installer
        (root / f"{module}.py").write_text("raise RuntimeError('the wrong one')\n")
    made = have(root)
    start, end = "made an environment of 2 packages in ", f" s for requirements.txt on {HOST}: pathspec 99.0, tiny 1.0"
    assert made.said.startswith(start)
    assert made.said.endswith(end)
    seen = ask(made.python, "import numpy, pathspec, tiny; print(pathspec.VERSION, tiny.VALUE, numpy.__file__)")
    assert seen == ["ninety-nine", "installed", numpy.__file__]
    assert have(root) == Installed(
        made.python, f"found the environment of 2 packages for requirements.txt on {HOST}: pathspec 99.0, tiny 1.0"
    )


def test_packages_of_the_worker_are_not_installed_again_and_an_incomplete_environment_is_replaced(root: Path) -> None:
    from_wheels(root, "numpy", "pyarrow>=18")
    made = have(root)
    assert made.said.startswith("made an environment of 0 packages in ")
    assert have(root).said == (
        f"found the environment of 0 packages for requirements.txt on {HOST}: the worker has all that it asks for"
    )
    folder = Path(made.python).parents[1]
    (folder / "mops-made.json").unlink()  # as after a kill
    (folder / "half of it").touch()
    assert have(root).said.startswith("made ")
    assert not (folder / "half of it").exists()


def test_one_of_two_concurrent_processes_makes_the_environment(root: Path) -> None:
    from_wheels(root, "tiny")
    env = os.environ | {"PYTHONPATH": RUNNER}
    run = [sys.executable, "-c", PROGRAM, str(root)]
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].splitlines() for process in both)
    pythons, words = zip(*said, strict=True)
    assert len(set(pythons)) == 1
    assert sorted(line.split()[0] for line in words) in (["made", "waited"], ["found", "made"])


def test_dependencies_of_a_pyproject_with_pips_own_variables(root: Path) -> None:
    write(root, "[project]", "name = 'sir'", "dependencies = ['tiny>=1', 'numpy']", file="pyproject.toml")
    links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels")}
    made = have(root, context(**links))
    assert made.said.endswith(f" s for pyproject.toml on {HOST}: tiny 1.0")
    assert ask(made.python, "import tiny; print(tiny.VALUE)") == ["installed"]
    write(root, "raise SystemExit", file="model.py")  # another bundle with the same dependencies
    assert have(root, context("two", **links)).said.startswith("found the environment of 1 package for")


LOCK = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "sir"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "tiny" }]

[package.metadata]
requires-dist = [{ name = "tiny", path = "wheels/tiny-1.0-py3-none-any.whl" }]

[[package]]
name = "tiny"
version = "1.0"
source = { path = "wheels/tiny-1.0-py3-none-any.whl" }
wheels = [{ filename = "tiny-1.0-py3-none-any.whl", hash = "sha256:DIGEST" }]
"""
LOCKED = """
[project]
name = "sir"
version = "1"
requires-python = ">=3.11"
dependencies = ["tiny"]

[tool.uv.sources]
tiny = { path = "wheels/tiny-1.0-py3-none-any.whl" }
"""


def locked(root: Path) -> None:
    digest = sha256((root / "wheels" / "tiny-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    write(root, LOCKED, file="pyproject.toml")
    write(root, LOCK.replace("DIGEST", digest), file="uv.lock")


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_a_lock_is_read_by_uv(root: Path) -> None:
    locked(root)
    made = have(root, context(PIP_NO_INDEX="1"))
    assert made.said.endswith(f" s for uv.lock on {HOST}: tiny 1.0")
    assert ask(made.python, "import tiny; print(tiny.VALUE)") == ["installed"]


def test_without_uv_pip_installs_it_temporarily(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake uv records its arguments. The environment that runs the tests may have a real one."""
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    script = (
        "#!python\nimport sys\nfile = sys.argv[sys.argv.index('--output-file') + 1]\n"
        "open(file, 'w').write('tiny\\n')\nopen('seen.txt', 'w').write(' '.join(sys.argv[1:]))\n"
    )
    wheel(root / "wheels", "uv", "1.0", scripts={"uv": script})
    locked(root)
    made = have(root, context(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(root / "wheels")))
    assert made.said.endswith(f" s for uv.lock on {HOST}: tiny 1.0"), "uv must not be in the environment"
    environment = Path(made.python).parents[1]
    assert not [path for path in environment.rglob("uv*") if not path.is_relative_to(environment / "project")]
    assert not (root / "seen.txt").exists(), "the installer wrote into the project"
    assert (
        (Path(made.python).parents[1] / "project" / "work" / "seen.txt")
        .read_text()
        .startswith("export --frozen --quiet --no-dev --no-emit-project --format requirements-txt --output-file ")
    )


def test_a_failing_install_shows_the_installers_last_lines(root: Path) -> None:
    from_wheels(root, "nosuch-package==1.0")
    refused = refusal(root)
    assert str(refused).splitlines() == [
        "the model's dependencies cannot be installed: pip ended with exit code 1",
        f"  Looking in links: {Path(python_of(refused)).parents[1]}/project/work/wheels",
        "  ERROR: Could not find a version that satisfies the requirement nosuch-package==1.0 (from versions: none)",
        "  ERROR: No matching distribution found for nosuch-package==1.0",
        f"  at: {HOST}: {command('-r requirements.txt', python=python_of(refused))}",
        HINT,
    ]


def test_an_install_that_takes_too_long_is_stopped(root: Path, silent_index: str) -> None:
    write(root, "tiny")
    for limit in (4, 15, 60):  # enough time for pip to print something
        refused = refusal(root, context(install_s=limit, PIP_INDEX_URL=silent_index))
        said = f"the model's dependencies cannot be installed: it took longer than {limit} s"
        assert refused.what.splitlines()[0] == said
        if "Looking in" in refused.what:
            break
    assert "Looking in indexes: http://****@127.0.0.1:" in refused.what
    assert refused.where == f"{HOST}: {command('-r requirements.txt', python=python_of(refused))}"
    assert refused.hint == "set MODELOPS_JOB_INSTALL_TIMEOUT higher"
    assert "c2VjcmV0" not in str(refused)
    assert not installers()


def installers() -> list[psutil.Process]:
    """Return the pip processes that run in the environments of this test."""
    living = (it for it in psutil.process_iter(["cmdline", "status"]) if it.info["status"] != psutil.STATUS_ZOMBIE)
    return [it for it in living if any(part.startswith(str(environments())) for part in it.info["cmdline"] or ())]


def tied() -> bool:
    """Return whether pip gets a signal when its parent ends (mops.system.signals)."""
    for process in installers():
        with suppress(OSError):
            for path in Path(f"/proc/{process.pid}/fdinfo").iterdir():
                flags = next(line for line in path.read_text().splitlines() if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ASYNC:
                    return True
    return False


def test_a_stop_ends_the_installer(root: Path, silent_index: str) -> None:
    write(root, "tiny")
    pool = Pool(context(PIP_INDEX_URL=silent_index), str(root), 1)
    with ThreadPoolExecutor(1) as tasks:
        installing = tasks.submit(pool.install)
        wait_for(installers)
        pool.stop(0.0)
        installing.result(timeout=60)
    pool.close()
    assert not installers()
    assert list(environments().glob("*/")) == []


def test_the_installer_of_a_killed_process_ends_and_releases_the_lock(root: Path, silent_index: str) -> None:
    """An orphaned installer would write into the environment that another process makes."""
    write(root, "tiny")
    env = os.environ | {"PYTHONPATH": RUNNER, "PIP_INDEX_URL": silent_index}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(root)], env=env) as process:
        wait_for(tied)
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not installers(), patience_s=20)  # without a signal it would retry for a minute
    refused = refusal(root, context(install_s=4, PIP_INDEX_URL=silent_index))
    assert "it took longer than 4 s" in refused.what


def test_waiting_for_another_process_has_a_time_limit(root: Path, silent_index: str) -> None:
    write(root, "tiny")
    env = os.environ | {"PYTHONPATH": RUNNER, "PIP_INDEX_URL": silent_index}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(root)], env=env) as process:
        wait_for(installers)
        with pytest.raises(InstallError) as raised:
            install(context(install_s=1, PIP_INDEX_URL=silent_index), root, lambda: False)
        process.kill()
    (lock,) = environments().glob("*.lock")
    assert str(raised.value).splitlines() == [
        "another process on this machine makes the same environment, for more than 1 s",
        f"  at: {HOST}: {lock}",
        "hint: set MODELOPS_JOB_INSTALL_TIMEOUT higher",
    ]


def test_waiting_tasks_do_not_repeat_a_failed_install(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    from_wheels(root, "nosuch-package")
    caplog.set_level(logging.INFO, "mops")
    pool = Pool(context(), str(root), 3)

    def why() -> str:
        with pytest.raises(InstallError) as raised:
            pool.install()
        return str(raised.value)

    with ThreadPoolExecutor(3) as tasks:
        whys = {future.result() for future in [tasks.submit(why) for _ in range(3)]}
    pool.close()
    assert len(whys) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "job: installing what requirements.txt asks for (limit 120 s)"
    ]


def test_libraries_that_are_too_old_for_simulations_are_refused(root: Path) -> None:
    wheel(root / "wheels", "pyarrow", "17.0.0", pyarrow__init="__version__ = '17.0.0'\n")
    from_wheels(root, "pyarrow==17.0.0")
    first, *rest = str(refusal(root)).splitlines()
    wrong = "its pyarrow is 17.0.0, and simulations need 18.0 or newer"
    assert first.startswith(f"no simulation can run with the model's dependencies: {wrong}")
    assert rest == [
        f"  at: {HOST}: requirements.txt",
        "hint: simulations need 'pyarrow>=18.0' 'numpy>=1.23'; ask for these versions, or do not list them",
    ]


def test_a_read_only_cache_is_an_error(root: Path, cache: Path) -> None:
    write(root, "tiny")
    cache.write_text("a file")
    with pytest.raises(InstallError) as raised:
        install(context(), root, lambda: False)
    first, where, hint = str(raised.value).splitlines()
    assert first == "an environment for the model's dependencies cannot be made: Not a directory"
    assert where.startswith(f"  at: {HOST}: {environments()}/")
    assert hint == "hint: free space there, or set XDG_CACHE_HOME to another folder"


def test_a_worker_outside_a_virtual_environment_with_libraries_on_its_path(root: Path) -> None:
    from_wheels(root, "tiny")
    libraries = Path(psutil.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{RUNNER}{os.pathsep}{libraries}"}
    base = getattr(sys, "_base_executable", sys.executable)
    ran = subprocess.run([base, "-c", PROGRAM, str(root)], capture_output=True, text=True, env=env, timeout=120)
    assert ran.returncode == 0, ran.stderr
    python = ran.stdout.splitlines()[0]
    seen = ask(python, "import numpy, tiny; print(tiny.VALUE, numpy.__file__)")
    assert seen[0] == "installed"
    assert Path(seen[1]).is_relative_to(libraries)


def test_a_worker_without_pip_gets_one(root: Path, tmp_path: Path) -> None:
    from_wheels(root, "tiny")
    worker = tmp_path / "worker"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", worker], check=True)
    (packages,) = worker.glob("lib/python*/site-packages")
    for name in ("filelock", "numpy", "packaging", "pathspec", "platformdirs", "psutil", "pyarrow"):
        for source in Path(psutil.__file__).parents[1].glob(f"{name}*"):
            (packages / source.name).symlink_to(source)
    (packages / "mops.pth").write_text(f"{RUNNER}\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [str(worker / "bin" / "python"), "-c", PROGRAM, str(root)]
    ran = subprocess.run(run, capture_output=True, text=True, env=env, timeout=120)
    assert ran.returncode == 0, ran.stderr
    python, said = ran.stdout.splitlines()
    assert said.endswith(": tiny 1.0"), "pip must not be in the environment"
    assert ask(python, "import numpy, tiny; print(tiny.VALUE)") == ["installed"]
