"""Makes the environment that a bundle asks for, once on each machine, on top of the worker's own packages.

A virtual environment cannot move, so mops makes each in its final place, under a lock. An environment counts once its
last file exists.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor
from packaging.requirements import InvalidRequirement, Requirement

from mops.child.working_folder import WorkingFolder, links_to
from mops.errors import InstallError
from mops.project.bundle_cache import DEPENDENCIES, LOCK, PYPROJECT, REQUIREMENTS, cache_folder
from mops.system import folders
from mops.system.signals import tie
from mops.task import JobContext
from mops.waiting import polls
from mops.worker.environment import environment, libraries, unfit

logger = logging.getLogger(__name__)

_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_OPTION = re.compile(
    r"(-i|--index-url|--extra-index-url|--trusted-host|--no-index|--pre|--prefer-binary|--only-binary|--no-binary"
    r"|--require-hashes|--use-feature)([\s=].*)?",
    re.DOTALL,
)
_COMMENT = re.compile(r"(^|\s+)#.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]+@")
_IN_THE_BUNDLE = {"editable", "directory", "path", "virtual"}
_WITHOUT_HASH = {"git", "editable", "directory", "virtual"}

# -P: a module of the project must not shadow a module of pip.
_PIP = ("-P", "-m", "pip", "install", "--no-input", "--no-user", "--disable-pip-version-check", "--progress-bar", "off")
_EXPORT = ("export", "--frozen", "--quiet", "--no-dev", "--no-emit-project", "--format", "requirements-txt")
_KEY_DIGITS = 32
_OF_THE_WORKER = "mops-worker.pth"
_MADE = "mops-made.json"  # the last file of a complete environment
_INSTALL_POLL_SECONDS = 0.1
_TAIL_BYTES, _LINES_SHOWN, _LINE_CHARACTERS = 16 << 10, 15, 300


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a project."""

    file: str  # that lists them
    content: tuple[str, ...]  # the texts that mops has read
    of_bundle: bool = False  # whether they may name other files of the bundle: bundles share no environment then
    hashed: bool = False  # whether each package of a lock has a hash
    requirements: tuple[str, ...] = ()  # a line for each dependency in pyproject.toml

    def key(self, bundle: str, machine: Iterable[str], variables: Mapping[str, str]) -> str:
        """Return the name of the environment on this machine's packages, a hash that reveals no variable's value."""
        named = {name for text in self.content for name in _VARIABLE.findall(text)}
        told = {name: value for name, value in variables.items() if name in named or name.startswith(("PIP_", "UV_"))}
        parts = [self.file, self.content, bundle if self.of_bundle else "", list(machine), sorted(told.items())]
        return sha256(json.dumps(parts).encode()).hexdigest()[:_KEY_DIGITS]


def read_dependencies(root: Path) -> Dependencies | None:
    """Return the dependencies of a project; None: the project lists none.

    Raises
    ------
    InstallError
        The file cannot be read, or pip cannot install what it lists.
    """
    texts = {
        name: (root / name).read_bytes().decode("utf-8-sig", errors="replace")
        for name in DEPENDENCIES
        if (root / name).is_file()
    }
    if REQUIREMENTS in texts:
        return _of_requirements(texts[REQUIREMENTS])
    if LOCK in texts and PYPROJECT in texts:
        return _of_lock(texts[LOCK], texts[PYPROJECT])
    return _of_project(texts[PYPROJECT]) if PYPROJECT in texts else None


def _of_requirements(text: str) -> Dependencies | None:
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = [line for line in map(str.strip, _COMMENT.sub("", joined).splitlines()) if line]
    if not lines:
        return None
    return Dependencies(REQUIREMENTS, (text,), of_bundle=any(map(_may_name_a_file, lines)))


def _may_name_a_file(line: str) -> bool:
    """Tell whether a line may name a file of the bundle."""
    if _OPTION.fullmatch(line):
        return "file:" in line
    try:
        requirement = Requirement(line.partition(" --")[0])  # pip's options for this requirement follow, like --hash
    except InvalidRequirement:  # a needless environment is better than a wrong environment
        return True
    url = requirement.url or "https://"
    return "://" not in url or "file:" in url or requirement.name.lower().endswith(_ARCHIVES)


def _of_lock(lock: str, project: str) -> Dependencies | None:
    sources = [package.get("source", {}) for package in _parsed(lock, LOCK).get("package", [])]
    others = [source for source in sources if "." not in source.values()]  # "." is the project itself
    if not others:
        return None
    hashed = not any(source.keys() & _WITHOUT_HASH for source in others)
    of_bundle = any(source.keys() & _IN_THE_BUNDLE or "://" not in source.get("registry", "://") for source in others)
    return Dependencies(LOCK, (lock, project), of_bundle, hashed)


def _of_project(text: str) -> Dependencies | None:
    read = _parsed(text, PYPROJECT)
    requirements = tuple(read.get("project", {}).get("dependencies", ()))
    if not requirements:
        return None
    if sources := read.get("tool", {}).get("uv", {}).get("sources"):
        raise InstallError(
            f"pip ignores the sources of {', '.join(sources)}, which only uv reads",
            where=f"{PYPROJECT}: [tool.uv.sources]",
            hint="add uv.lock to the project (uv lock), or a requirements.txt",
        )
    return Dependencies(PYPROJECT, requirements, any(map(_may_name_a_file, requirements)), requirements=requirements)


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise InstallError(f"the model's dependencies cannot be read: {bad}", where=file) from bad


def masked(text: str) -> str:
    """Return a text without the user names and passwords of its URLs."""
    return _CREDENTIALS.sub("****@", text)


def last_lines(said: str) -> str:
    """Return the last lines of an installer's output for an error message, indented and without passwords."""
    lines = [line.rstrip()[:_LINE_CHARACTERS] for line in masked(said).splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-_LINES_SHOWN:])


@dataclass(frozen=True)
class Installed:
    """An environment: its interpreter, and a line for the log."""

    python: str
    said: str


class _Stopped(Exception):
    """No task needs the environment any longer."""


def install(context: JobContext, root: Path, is_over: Callable[[], bool]) -> Installed | None:
    """Find or make the environment that a bundle asks for; None: it asks for none, or ``is_over``.

    Raises
    ------
    InstallError
        The installer failed or took too long, or no child process can run in the environment.
    """
    try:
        wanted = read_dependencies(root)
        return _EnvironmentBuilder(context, root, wanted, is_over).installed() if wanted else None
    except _Stopped:
        return None
    except OSError as bad:
        raise InstallError(
            f"an environment for the model's dependencies cannot be made: {bad.strerror}",
            where=f"{socket.gethostname()}: {bad.filename or environments()}",
            hint="free space there, or set XDG_CACHE_HOME to another folder",
        ) from bad


def environments() -> Path:
    """Return the folder of environments: ``mops/environments`` in the user's cache folder."""
    return cache_folder().with_name("environments")


class _EnvironmentBuilder:
    """Finds one environment, waits for another process that makes it, or makes it."""

    def __init__(self, context: JobContext, root: Path, wanted: Dependencies, is_over: Callable[[], bool]):
        assert context.install_s is not None
        self._job, self._limit_s = context.job, context.install_s
        self._wanted, self._is_over = wanted, is_over
        # The environment has another interpreter, for which the worker's PYTHONPATH and PYTHONHOME are wrong.
        self._variables = environment(context.env, n_threads=context.threads, python="its own")
        # Its base: this Python, and its packages with their versions.
        packages = {
            path.name
            for folder in (*_own_packages(), *_given_paths(), *site.getsitepackages())
            for path in Path(folder).glob("*.dist-info")
        }
        machine = [sys.version, sysconfig.get_platform(), sys.prefix, sys.base_prefix, *sorted(packages)]
        self._folder = environments() / wanted.key(context.bundle, machine, self._variables)
        self._python = str(self._folder / "bin" / "python")
        # A build writes next to its sources, which are read-only in the bundle. Editable installs need them later too.
        self._place = WorkingFolder(self._folder / "project", links_to(root))

    def installed(self) -> Installed:
        """Return the environment; make it if it does not exist."""
        began = time.monotonic()
        if (there := self._there()) is not None:
            return self._described(there, "found the environment")
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        # The kernel releases the lock when this process ends. It is not a FileLock, whose release would unlock the file
        # for the installer too, which inherits the descriptor.
        with self._folder.with_suffix(".lock").open("ab") as lock:
            doing = "another process on this machine makes the same environment"
            if not self._waited(lambda: lock_descriptor(lock.fileno(), blocking=False), doing, time.monotonic()):
                raise InstallError(
                    f"{doing}, for more than {self._limit_s:g} s",
                    where=f"{socket.gethostname()}: {lock.name}",
                    hint="set MODELOPS_JOB_INSTALL_TIMEOUT higher",
                )
            took = f"{time.monotonic() - began:.1f} s"
            if (there := self._there()) is not None:  # the process that had the lock before has made it
                return self._described(there, f"waited {took} for another process and found the environment")
            try:
                return self._made(lock.fileno())
            except BaseException:
                with suppress(OSError):  # the first error counts
                    folders.remove(self._folder)
                raise

    def _there(self) -> dict[str, str] | None:
        """Return the versions of the environment's packages by name; None: the environment is missing or incomplete."""
        try:
            found: dict[str, str] = json.loads((self._folder / _MADE).read_text())
        except FileNotFoundError:
            return None
        return found

    def _described(self, packages: dict[str, str], how: str, took: str = "") -> Installed:
        n = f"{len(packages)} package{'' if len(packages) == 1 else 's'}"
        listed = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
        what = f"{how} of {n}{took} for {self._wanted.file} on {socket.gethostname()}"
        return Installed(self._python, f"{what}: {listed or 'the worker has all that it asks for'}")

    def _waited(self, done: Callable[[], bool], doing: str, began: float) -> bool:
        """Wait until a condition holds, and log every 30 s; return False if the time limit ends first."""
        before_s = time.monotonic() - began
        for poll in polls(_INSTALL_POLL_SECONDS, self._limit_s - before_s, stopped=self._is_over):
            if done():
                return True
            if poll.log_is_due:
                place, waited_s = (self._job, self._wanted.file, doing), before_s + poll.waited_s
                logger.warning("%s: %s: %s, for %.0f s (limit %g s)", *place, waited_s, self._limit_s)
        if self._is_over():
            raise _Stopped
        return False

    def _made(self, lock_fd: int) -> Installed:
        logger.info("%s: installing what %s asks for (limit %g s)", self._job, self._wanted.file, self._limit_s)
        began = time.monotonic()
        self._make_empty()
        if importlib.util.find_spec("pip") is None:
            self._run("ensurepip", [self._python, "-P", "-m", "ensurepip"], lock_fd, began)
        before = self._packages()
        for program, command in self._commands():
            self._run(program, command, lock_fd, began)
        if wrong := unfit(self._python, self._variables):
            raise InstallError(
                f"no simulation can run with the model's dependencies: {wrong}",
                where=f"{socket.gethostname()}: {self._wanted.file}",
                hint=f"simulations need {libraries()}; ask for these versions, or do not list them",
            )
        packages = {name: version for name, version in self._packages().items() if name not in before}
        new = self._folder / f"{_MADE}.new"
        new.write_text(json.dumps(packages))
        new.replace(self._folder / _MADE)
        return self._described(packages, "made an environment", f" in {time.monotonic() - began:.1f} s")

    def _make_empty(self) -> None:
        """Remove what a killed process left, and make an environment on top of the worker's packages."""
        folders.remove(self._folder)
        # If the worker's own environment sees the packages of the base, the new environment needs them too.
        venv.EnvBuilder(system_site_packages=sys.base_prefix in site.PREFIXES, symlinks=True).create(self._folder)
        # This process's packages come after the environment's own. Outside of a virtual environment, they are those of
        # the base, which the environment sees without help.
        lines = [*_given_paths(), *(f"import site; site.addsitedir({path!r})" for path in _own_packages())]
        (self._site_packages / _OF_THE_WORKER).write_text("".join(f"{line}\n" for line in lines))
        self._place.renew()

    @property
    def _site_packages(self) -> Path:
        base = {"base": str(self._folder), "platbase": str(self._folder)}
        return Path(sysconfig.get_path("purelib", "venv", vars=base))

    def _packages(self) -> dict[str, str]:
        found = metadata.distributions(path=[str(self._site_packages)])
        return {distribution.name: distribution.version for distribution in found}

    def _commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the commands to run, with the name of each program."""
        listed = str(self._folder / REQUIREMENTS)
        if self._wanted.file == REQUIREMENTS:
            listed = REQUIREMENTS  # its paths are relative to the project
        elif self._wanted.file == LOCK:  # uv lists its packages
            tools = self._folder / "tools"
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            uv = shutil.which("uv", path=path)
            if uv is None:  # pip installs one first, and mops removes it
                yield "pip", [self._python, *_PIP, "--target", str(tools), "uv"]
            hashes = [] if self._wanted.hashed else ["--no-hashes"]
            yield "uv", [uv or str(tools / "bin" / "uv"), *_EXPORT, *hashes, "--output-file", listed]
            shutil.rmtree(tools, ignore_errors=True)
        elif self._wanted.file == PYPROJECT:
            Path(listed).write_text("".join(f"{line}\n" for line in self._wanted.requirements))
        yield "pip", [self._python, *_PIP, "-r", listed]

    def _run(self, program: str, command: Sequence[str], lock_fd: int, began: float) -> None:
        with tempfile.TemporaryFile() as output:
            with _started(command, self._place.path, self._variables, output, lock_fd) as process:
                in_time = self._waited(lambda: process.poll() is not None, f"{program} is running", began)
            code = process.returncode
            if in_time and not code:
                return
            n_bytes = output.seek(0, os.SEEK_END)
            output.seek(max(n_bytes - _TAIL_BYTES, 0))
            said = last_lines(output.read().decode(errors="replace"))
        what = f"{program} ended {f'with exit code {code}' if code > 0 else f'by signal {-code}'}"
        hint = (
            f"correct {self._wanted.file} or the workers' PIP_INDEX_URL, or set MODELOPS_JOB_INSTALL=never to use "
            "the workers' packages"
        )
        if not in_time:
            what, hint = f"it took longer than {self._limit_s:g} s", "set MODELOPS_JOB_INSTALL_TIMEOUT higher"
        raise InstallError(
            f"the model's dependencies cannot be installed: {what}{said}",
            where=f"{socket.gethostname()}: {masked(shlex.join(command))}",
            hint=hint,
        )


@contextmanager
def _started(
    command: Sequence[str], folder: Path, variables: dict[str, str], output: IO[bytes], lock_fd: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start an installer, and kill it with its descendants when the body or this process ends."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=variables,
                # With the lock: no process makes the environment again while an old installer still writes.
                pass_fds=(lock_fd, theirs.fileno()),
                start_new_session=True,
            )
            tie(theirs.fileno(), process.pid)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _own_packages() -> list[str]:
    """Return the package folders of this process's virtual environment; none: it runs in no virtual environment."""
    if sys.prefix == sys.base_prefix:
        return []
    return [path for path in site.getsitepackages() if Path(path).is_relative_to(sys.prefix)]


def _given_paths() -> list[str]:
    return [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
