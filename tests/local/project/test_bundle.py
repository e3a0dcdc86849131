"""Bundles: the same content is the same file, and a folder in the cache is whole."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from cases import case_folder
from mops.errors import BundleError, StorageError
from mops.jobs.location import DEFAULT_STORAGE
from mops.jobs.table import create_folder
from mops.project import bundle as bundles
from mops.project.bundle import BUILT_IN_IGNORE, RESULTS, TRACKED, Bundle, pack
from mops.project.bundle_cache import cache_folder, restore, unpack
from mops.project.difference import differing_files
from mops.system import folders

UNPACK = """
import sys
from pathlib import Path
from mops.project.bundle_cache import unpack
data, digest, cache = Path(sys.argv[1]).read_bytes(), sys.argv[2], Path(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
print(unpack(digest, lambda: data, cache), flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "bundles"


def lay(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def problems(root: Path) -> list[str]:
    """Return the lines that refuse a project."""
    with pytest.raises(BundleError) as raised:
        pack(root)
    first, *lines = raised.value.what.split("\n")
    assert first == "the project folder cannot be packed"
    assert raised.value.where == str(root)
    assert ".mopsignore" in str(raised.value.hint)
    return [line.strip() for line in lines]


# --- the same content, the same bytes ---------------------------------------------------------------------------------

TREE: dict[str, str | bytes] = {
    "study.json": "{}",
    "models/sir.py": "def run(): ...\n",
    "models/été.py": "",
    "a-b.csv": "1\n",
    "a/b.csv": b"\x00\xff",
}


def test_the_digest_of_a_known_tree_is_the_same_on_every_machine_and_python(root: Path) -> None:
    lay(root, TREE)
    (root / "models/sir.py").chmod(0o755)
    bundle = pack(root)
    assert bundle.names == ("a-b.csv", "a/b.csv", "models/sir.py", "models/été.py", "study.json")
    assert bundle.digest == sha256(bundle.data).hexdigest()
    assert bundle.digest == "eb7d85ae1e8463454469358f82c8eaf39dff94301c4d1a9f9edcfa62f75f38f4"


def test_neither_clock_nor_order_nor_umask_changes_the_bytes(tmp_path: Path) -> None:
    made: list[Bundle] = []
    for mask, names in ((0o022, list(TREE)), (0o077, list(reversed(TREE))), (0o000, sorted(TREE))):
        root = tmp_path / f"project-{mask}"
        before = os.umask(mask)
        try:
            lay(root, {name: TREE[name] for name in names})
        finally:
            os.umask(before)
        for n, name in enumerate(names):
            os.utime(root / name, (1e9 + mask + n, 1e9 + mask - n))
        made.append(pack(root))
    assert made[0] == made[1] == made[2]


def test_a_name_a_byte_or_the_executable_bit_changes_the_digest(root: Path) -> None:
    lay(root, {"a.py": "1"})
    digests = {pack(root).digest}
    lay(root, {"a.py": "2"})
    digests.add(pack(root).digest)
    (root / "a.py").chmod(0o755)
    digests.add(pack(root).digest)
    (root / "a.py").rename(root / "b.py")
    digests.add(pack(root).digest)
    assert len(digests) == 4


def test_entries_are_stored_with_a_fixed_time_and_one_of_two_modes(root: Path) -> None:
    lay(root, {"data.csv": "1", "run.sh": "2"})
    (root / "data.csv").chmod(0o666)
    (root / "run.sh").chmod(0o700)
    with zipfile.ZipFile(io.BytesIO(pack(root).data)) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    assert {entry.date_time for entry in entries.values()} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in entries.values()} == {zipfile.ZIP_STORED}
    assert oct(entries["data.csv"].external_attr >> 16) == oct(stat.S_IFREG | 0o644)
    assert oct(entries["run.sh"].external_attr >> 16) == oct(stat.S_IFREG | 0o755)


def test_a_root_reached_by_a_link_or_a_relative_path_packs_alike(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(root, TREE)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root / "models")
    assert pack(tmp_path / "link") == pack(Path("..")) == pack(root)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="this project folder does not exist"):
        pack(tmp_path / "gone")


# --- what is in -------------------------------------------------------------------------------------------------------


def test_what_no_model_needs_is_left_out(root: Path, subtests: pytest.Subtests) -> None:
    for name in [
        ".git/HEAD",
        "sub/.git",  # a worktree's or a submodule's is a file
        "models/__pycache__/sir.cpython-311.pyc",
        "models/sir.pyc",
        ".mypy_cache/x",
        ".pytest_cache/x",
        ".ruff_cache/x",
        ".hypothesis/x",
        ".ipynb_checkpoints/a.ipynb",
        ".tox/x",
        ".venv/bin/python",
        "sub/venv/bin/python",
        "node_modules/x/index.js",
        "build/lib/x.py",
        "dist/x.whl",
        "sir.egg-info/PKG-INFO",
        "mops-storage/jobs/x",
        ".DS_Store",
        "data/.DS_Store",
        "models/.sir.py.swp",
        "models/sir.py~",
    ]:
        with case_folder(subtests, root, name) as folder:
            lay(folder, {"sir.py": "", name: "x"})
            assert pack(folder).names == ("sir.py",)


def test_the_default_storage_is_not_packed_into_the_next_job() -> None:
    assert f"{DEFAULT_STORAGE}/" in BUILT_IN_IGNORE


def test_packages_named_build_and_dist_are_a_models_own(root: Path) -> None:
    lay(root, {"models/build/__init__.py": "", "models/dist/gamma.py": ""})
    assert pack(root).names == ("models/build/__init__.py", "models/dist/gamma.py")


def test_a_virtual_environment_is_known_by_its_config_whatever_its_name(root: Path) -> None:
    lay(root, {"sir.py": "", "env/pyvenv.cfg": "", "env/bin/python": "", "env-data/x.csv": ""})
    assert pack(root).names == ("env-data/x.csv", "sir.py")


@pytest.mark.parametrize("file", [".mopsignore", ".modelopsignore"])
def test_the_projects_ignore_files_have_gitignore_semantics(root: Path, file: str) -> None:
    lines = "\ufeff# a comment\r\n\r\n*.log\r\n!keep.log\r\n/raw\r\ndocs/**/draft.md\r\nbig/\r\n!big/small.csv\r\n"
    lay(root, {file: lines})
    kept = ["keep.log", "sub/keep.log", "sub/raw", "docs/final.md"]
    left = ["a.log", "sub/b.log", "raw/x.csv", "docs/a/b/draft.md", "docs/draft.md", "big/small.csv"]
    lay(root, dict.fromkeys(kept + left, ""))
    assert set(pack(root).names) == {file, *kept}


def test_a_project_takes_back_what_the_built_in_list_leaves_out(root: Path) -> None:
    lay(root, {".mopsignore": "!/build/\n", "build/table.csv": "", "dist/x": ""})
    assert pack(root).names == (".mopsignore", "build/table.csv")


def test_gitignore_is_not_read(root: Path) -> None:
    lay(root, {".gitignore": "data/\n", "data/cases.csv": "1"})
    assert pack(root).names == (".gitignore", "data/cases.csv")


def test_tracked_files_are_in_though_ignored(root: Path) -> None:
    tracked = "# data\n\ndata/cases.csv\n./.venv/share/life.csv\n  sir.py  \nodd #name.csv\r\n"
    lay(root, {".modelops-bundle/tracked.txt": tracked, ".mopsignore": "data/\n*.csv\n"})
    wanted = {"data/cases.csv", ".venv/share/life.csv", "sir.py", "odd #name.csv"}
    lay(root, dict.fromkeys([*wanted, "data/other.csv", ".venv/bin/python"], ""))
    assert set(pack(root).names) == {".modelops-bundle/tracked.txt", ".mopsignore", *wanted}


def test_ignored_folders_are_not_entered(root: Path) -> None:
    """If mops followed a link of a virtual environment out of the project, mops would refuse every project."""
    lay(root, {"sir.py": "", ".venv/lib/x.py": ""})
    (root / ".venv/python").symlink_to("/usr/bin/env")
    (root / "venv").symlink_to("/usr")
    assert pack(root).names == ("sir.py",)


def test_links_inside_the_root_are_stored_as_what_they_point_to(root: Path, cache: Path) -> None:
    lay(root, {"data/2024/cases.csv": "1", "shared/deep/x.csv": "2"})
    (root / "latest.csv").symlink_to("data/2024/cases.csv")
    (root / "absolute.csv").symlink_to(root / "data/2024/cases.csv")
    (root / "data/shared").symlink_to("../shared")
    (root / "again").symlink_to("data/shared/deep")
    bundle = pack(root)
    assert bundle.names == (
        "absolute.csv",
        "again/x.csv",
        "data/2024/cases.csv",
        "data/shared/deep/x.csv",
        "latest.csv",
        "shared/deep/x.csv",
    )
    folder = unpack(bundle.digest, lambda: bundle.data, cache)
    assert (folder / "latest.csv").read_text() == (folder / "absolute.csv").read_text() == "1"
    assert (folder / "data/shared/deep/x.csv").read_text() == "2"
    assert not any(path.is_symlink() for path in folder.rglob("*"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_every_problem_is_named_in_one_error(root: Path, tmp_path: Path) -> None:
    lay(root, {"sir.py": "", "sub/x": "", ".modelops-bundle/tracked.txt": "a.csv\n../b.csv\nsub\nout\nsub/gone\n"})
    (root / ".mopsignore").write_bytes(b"*.log\n!\n")
    (root / "out").symlink_to(tmp_path)
    (root / "home").symlink_to("../secret")
    (tmp_path / "secret").write_text("")
    (root / "dangling").symlink_to("nowhere")
    (root / "self").symlink_to("self")
    (root / "sub/up").symlink_to("..")
    (root / "back\\slash").write_text("")
    (root / "C:x").write_text("")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))
        found = problems(root)
    assert sorted(found) == sorted(
        [
            ".mopsignore, line 2: '!' is not a gitignore pattern",
            f"out: is a link out of the project, to {tmp_path}",
            f"home: is a link out of the project, to {tmp_path}/secret",
            "dangling: does not exist: it was just removed, or is a broken link",
            "self: cannot be read (Too many levels of symbolic links)",
            "sub/up: is a link to a folder that contains it",
            "back\\slash: has a name that other systems read as a path (backslash, drive letter); rename it",
            "C:x: has a name that other systems read as a path (backslash, drive letter); rename it",
            "pipe: is a named pipe, not a file",
            "s: is a socket, not a file",
            "a.csv: is listed in .modelops-bundle/tracked.txt, line 1, and does not exist; restore it or drop the line",
            ".modelops-bundle/tracked.txt, line 2: ../b.csv is not a plain path under the project root",
            "sub: is a folder, not a file",
            (
                "sub/gone: is listed in .modelops-bundle/tracked.txt, line 5, and does not exist; "
                "restore it or drop the line"
            ),
        ]
    )


def test_a_problem_that_is_ignored_is_none(root: Path, tmp_path: Path) -> None:
    lay(root, {"sir.py": "", ".mopsignore": "out\npipe\ndangling\n"})
    (root / "out").symlink_to(tmp_path)
    (root / "dangling").symlink_to("nowhere")
    (root / ".#sir.py").symlink_to("user@host.1234")
    os.mkfifo(root / "pipe")
    assert pack(root).names == (".mopsignore", "sir.py")


def test_a_line_that_is_no_pattern_is_refused(root: Path, subtests: pytest.Subtests) -> None:
    """A range from z to a once ended the packing with an error of the regular expression's compiler."""
    for pattern in ["!", "a\\", "[z-a]"]:
        with case_folder(subtests, root, pattern) as folder:
            lay(folder, {".mopsignore": f"data/\n{pattern}\n"})
            assert problems(folder) == [f".mopsignore, line 2: {pattern!r} is not a gitignore pattern"]


def test_folders_that_link_to_each_other_do_not_hang(root: Path) -> None:
    lay(root, {"a/x": "", "b/y": ""})
    (root / "a/b").symlink_to("../b")
    (root / "b/a").symlink_to("../a")
    assert set(problems(root)) == {
        "a/b/a: is a link to a folder that contains it",
        "b/a/b: is a link to a folder that contains it",
    }


def test_folders_whose_links_double_do_not_hang(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty folders, each reached by two links from the one before: a million million paths without a file."""
    monkeypatch.setattr(bundles, "COUNT_LIMIT", 500)
    for n in range(40):
        (root / f"d{n}").mkdir()
        for name in "ab":
            (root / f"d{n}/{name}").symlink_to(f"../d{n + 1}")
    (root / "d40").mkdir()
    assert problems(root) == [".: holds more than 500 files and folders; is this the project?"]


def test_names_that_are_not_utf8_are_refused(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.csv")).write_text("")
    assert problems(root) == ["'caf\\udce9.csv': has a name that is not UTF-8; rename it"]


def test_lists_that_are_not_text_are_refused(root: Path) -> None:
    lay(root, {".mopsignore": b"\xff", ".modelops-bundle/tracked.txt": b"a\xff"})
    assert problems(root) == [
        ".mopsignore: is not UTF-8 text (byte 0)",
        ".modelops-bundle/tracked.txt: is not UTF-8 text (byte 1)",
    ]


def test_a_long_list_of_problems_is_cut_with_their_number(root: Path) -> None:
    for n in range(25):
        (root / f"{n:02d}").symlink_to("nowhere")
    found = problems(root)
    assert len(found) == 21
    assert found[-1] == "and 5 more"


@contextmanager
def plain_user() -> Iterator[None]:
    """Run the body as the user `nobody` if the tests run as root, because root may read everything."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_what_may_not_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        root.chmod(0o755)
        lay(root, {"sir.py": "", "secret.csv": "", "closed/x": "", "listed/x": ""})
        (root / "secret.csv").chmod(0)
        (root / "closed").chmod(0)
        (root / "listed").chmod(0o444)
        with plain_user():
            found = problems(root)
        (root / "closed").chmod(0o755)
        (root / "listed").chmod(0o755)
    assert sorted(found) == [
        "closed: cannot be listed (Permission denied)",
        "listed/x: cannot be read (Permission denied)",
        "secret.csv: is not readable",
    ]


def sparse(path: Path, size_mib: float) -> None:
    with path.open("wb") as file:
        file.truncate(int(size_mib * 2**20))


def test_data_that_is_too_big_is_left_out_and_named(root: Path) -> None:
    for name, size_mib in {"a": 250, "data/b": 201, "c": 200, "sir.py": 0}.items():
        (root / name).parent.mkdir(exist_ok=True)
        sparse(root / name, size_mib)
    bundle = pack(root)
    assert bundle.names == ("c", "sir.py")
    assert bundle.too_large == (("a", 250 << 20), ("data/b", 201 << 20))


@pytest.mark.parametrize("file", [".mopsignore", TRACKED])
def test_files_that_a_project_asks_for_are_refused_if_they_are_too_big(root: Path, file: str) -> None:
    lay(root, {file: "!a\n" if file == ".mopsignore" else "a\n"})
    for name in ("a", "code.py"):
        sparse(root / name, 201)
    assert problems(root) == [f"{name}: has 201.0 MiB; the limit for a file is 200.0 MiB" for name in ("a", "code.py")]


def test_reports_and_folders_of_results_are_left_out(root: Path) -> None:
    lay(root, {"sir.py": "", "out/.gitignore": RESULTS, "data/.gitignore": "*\n"})
    lay(root, dict.fromkeys(["out/daily.csv", "out/deep/more.csv", "data/x.csv", "report-a.html", "own.html"], "x"))
    assert pack(root).names == ("data/.gitignore", "data/x.csv", "own.html", "sir.py")


def test_results_are_left_out_of_a_folder_without_files_only(root: Path) -> None:
    lay(root, {"sir.py": "", "own/x.csv": ""})
    (root / "empty").mkdir()
    for name in ("own", "empty", "new/deep"):
        create_folder(root / name)
        (root / name / "results.csv").write_text("x")
    assert pack(root).names == ("own/results.csv", "own/x.csv", "sir.py")


def test_a_gitignore_that_is_no_file_is_a_problem_only_if_it_is_packed(root: Path) -> None:
    lay(root, dict.fromkeys(["sir.py", "odd/.gitignore/x", "linked/y", "piped/z"], ""))
    lay(root, {".mopsignore": "piped/.gitignore\n"})
    (root / "linked/.gitignore").symlink_to("nothing")
    os.mkfifo(root / "piped/.gitignore")
    assert problems(root) == ["linked/.gitignore: does not exist: it was just removed, or is a broken link"]
    (root / "linked/.gitignore").unlink()
    assert pack(root).names == (".mopsignore", "linked/y", "odd/.gitignore/x", "piped/z", "sir.py")


def test_files_and_projects_that_are_too_big_are_refused_with_the_biggest(root: Path) -> None:
    lay(root, {".mopsignore": "!a\n!b\n"})
    for name, size_mib in {"a": 250, "b": 201.25, "c": 200, "d": 3, "e": 2, "f": 1, "sir.py": 0}.items():
        sparse(root / name, size_mib)
    assert problems(root) == [
        "a: has 250.0 MiB; the limit for a file is 200.0 MiB",
        "b: has 201.2 MiB; the limit for a file is 200.0 MiB",
        (
            ".: has 657.3 MiB in all; the limit is 500.0 MiB; the largest: "
            "a (250.0 MiB), b (201.2 MiB), c (200.0 MiB), d (3.0 MiB), e (2.0 MiB)"
        ),
    ]


def test_big_files_that_are_ignored_do_not_count(root: Path) -> None:
    lay(root, {".mopsignore": "*.bin\n"})
    for n in range(4):
        sparse(root / f"{n}.bin", 200)
    assert pack(root).names == (".mopsignore",)


# --- unpacking --------------------------------------------------------------------------------------------------------


def test_what_was_packed_comes_back_read_only(root: Path, cache: Path) -> None:
    lay(root, TREE)
    (root / "models/sir.py").chmod(0o755)
    bundle = pack(root)
    before = os.umask(0o077)
    try:
        folder = unpack(bundle.digest, lambda: bundle.data, cache)
    finally:
        os.umask(before)
    assert folder == cache / bundle.digest
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in files.items()} == {
        name: content.encode() if isinstance(content, str) else content for name, content in TREE.items()
    }
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()}
    assert modes.pop("models/sir.py") == 0o555
    assert set(modes.values()) == {0o444}
    inner = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in inner} == {0o555}
    assert list(cache.iterdir()) == [folder]
    assert pack(folder) == bundle


def test_what_differs_from_an_unpacked_bundle_is_named(root: Path, cache: Path) -> None:
    """A resume ran the job's own bundle without a word, whatever had become of the project's files."""
    lay(root, {"same.py": "1", "model.py": "1", "data/gone.csv": "1", "script.sh": "1", "size.txt": "1"})
    bundle = pack(root)
    folder = unpack(bundle.digest, lambda: bundle.data, cache)
    assert list(differing_files(bundle, folder)) == []
    lay(root, {"model.py": "2", "data/new.csv": "1", "size.txt": "12"})
    (root / "data/gone.csv").unlink()
    (root / "script.sh").chmod(0o755)
    assert list(differing_files(pack(root), folder)) == [
        ("model.py", "changed"),
        ("data/gone.csv", "removed"),
        ("data/new.csv", "added"),
        ("script.sh", "changed"),
        ("size.txt", "changed"),
    ]


def test_an_empty_project_comes_back(root: Path, cache: Path) -> None:
    bundle = pack(root)
    assert bundle.names == ()
    assert list(unpack(bundle.digest, lambda: bundle.data, cache).iterdir()) == []


def test_a_finished_folder_is_returned_without_looking_at_the_data(root: Path, cache: Path) -> None:
    lay(root, TREE)
    bundle = pack(root)
    folder = unpack(bundle.digest, lambda: bundle.data, cache)
    assert unpack(bundle.digest, lambda: b"not looked at", cache) == folder


def test_data_that_is_not_what_the_digest_names_is_refused(root: Path, cache: Path) -> None:
    lay(root, TREE)
    bundle = pack(root)
    damaged = bundle.data[:-1] + b"x"
    with pytest.raises(BundleError, match=f"damaged: its SHA-256 is {sha256(damaged).hexdigest()}"):
        unpack(bundle.digest, lambda: damaged, cache)
    assert list(cache.iterdir()) == []


def test_a_digest_that_is_none_names_no_folder(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for digest in ["..", "", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"]:
        with (
            case_folder(subtests, tmp_path, digest) as folder,
            pytest.raises(BundleError, match="is not the SHA-256 of a bundle"),
        ):
            unpack(digest, lambda: b"", folder)


Zip = Callable[[zipfile.ZipFile], None]


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


def crafted(fill: Zip) -> tuple[bytes, str]:
    """Return a zip file that pack would not write, with its right digest."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # duplicate names
        fill(archive)
    return buffer.getvalue(), sha256(buffer.getvalue()).hexdigest()


def test_names_that_climb_are_refused(cache: Path, subtests: pytest.Subtests) -> None:
    for n_case, name in enumerate(
        ["/etc/x", "../x", "a/../../x", "a/./b", "a//b", "..", ".", "", "a\\..\\b", "C:x", "c:/x", "folder/", "x\udcff"]
    ):
        with subtests.test(ascii(name)):
            here = cache / str(n_case)
            if "\udcff" in name:
                data = crafted(lambda archive: archive.writestr(entry("xé"), ""))[0].replace("é".encode(), b"\xff\xfe")
                digest = sha256(data).hexdigest()
            else:
                data, digest = crafted(lambda archive, name=name: archive.writestr(entry(name), "x"))
            with pytest.raises(BundleError):
                unpack(digest, lambda data=data: data, here)
            assert list(here.iterdir()) == []
            assert not any(path.name == "x" for path in cache.parent.parent.rglob("*"))


def test_entries_that_pack_never_writes_are_refused(cache: Path, subtests: pytest.Subtests) -> None:
    for n_case, (fill, message) in enumerate(
        [
            (lambda z: z.writestr(entry("link", stat.S_IFLNK | 0o777), "/etc/passwd"), "link: is a link or another"),
            (lambda z: z.writestr(entry("pipe", stat.S_IFIFO | 0o644), ""), "pipe: is a link or another"),
            (lambda z: [z.writestr(entry("a"), "1"), z.writestr(entry("a"), "2")], "a: appears twice"),
            (lambda z: [z.writestr(entry("a/b"), "1"), z.writestr(entry("a"), "2")], "a: is both a file and a folder"),
            (lambda z: z.writestr(entry("z"), "1" * 999, zipfile.ZIP_DEFLATED), "z: is compressed or encrypted"),
        ]
    ):
        with subtests.test(message):
            here = cache / str(n_case)
            data, digest = crafted(fill)
            with pytest.raises(BundleError, match=f"the bundle contains what mops never packs\n  {message}"):
                unpack(digest, lambda data=data: data, here)
            assert list(here.iterdir()) == []


def test_data_that_is_no_zip_file_is_refused(cache: Path, subtests: pytest.Subtests) -> None:
    for n_case, data in enumerate([b"", b"not a zip", b"PK\x05\x06"]):
        with subtests.test(str(data)):
            folder = cache / str(n_case)
            with pytest.raises(BundleError, match="is not a zip file that mops wrote"):
                unpack(sha256(data).hexdigest(), lambda data=data: data, folder)
            assert list(folder.iterdir()) == []


def test_a_cache_that_cannot_be_written_says_where(root: Path, tmp_path: Path) -> None:
    bundle = pack(root)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be unpacked: Not a directory") as raised:
        unpack(bundle.digest, lambda: bundle.data, tmp_path / "file" / "cache")
    assert "XDG_CACHE_HOME" in str(raised.value.hint)
    assert str(tmp_path / "file") in str(raised.value.where)


def test_a_bundle_from_which_files_were_removed_is_whole_again_at_the_same_place(root: Path, cache: Path) -> None:
    lay(root, {"model.py": "x", "data/rates.csv": "0.5", "data/more/ages.csv": "1"})
    bundle = pack(root)
    folder = unpack(bundle.digest, lambda: bundle.data, cache)
    for removed in (folder / "model.py", folder / "data", folder, cache):
        removed.parent.chmod(0o755)
        folders.remove(removed)
        restore(bundle.digest, lambda: bundle.data, cache)
        assert whole(folder, bundle)
        assert [path.name for path in cache.iterdir()] == [bundle.digest]
        assert not folder.stat().st_mode & 0o222


def test_a_whole_bundle_is_not_unpacked_again(root: Path, cache: Path) -> None:
    bundle = pack(root)
    folder = unpack(bundle.digest, lambda: bundle.data, cache)
    before = folder.stat()
    restore(bundle.digest, lambda: bundle.data, cache)
    assert folder.stat() == before
    with pytest.raises(BundleError, match="damaged"):
        restore(bundle.digest, lambda: b"other", cache)


# --- at once, and interrupted -----------------------------------------------------------------------------------------


def start_unpacking(bundle: Bundle, cache: Path) -> subprocess.Popen[str]:
    """Start a process that unpacks on request."""
    data = cache.parent / "data.zip"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_bytes(bundle.data)
    process = subprocess.Popen(
        [sys.executable, "-c", UNPACK, str(data), bundle.digest, str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def whole(folder: Path, bundle: Bundle) -> bool:
    return pack(folder) == bundle


def test_processes_that_unpack_at_once_all_get_the_whole_folder(root: Path, cache: Path) -> None:
    lay(root, {f"data/{n}.csv": "x" * 2000 for n in range(400)})
    bundle = pack(root)
    processes = [start_unpacking(bundle, cache) for _ in range(4)]
    for process in processes:
        go(process)
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out == f"{cache / bundle.digest}\n"
    assert whole(cache / bundle.digest, bundle)
    assert list(cache.iterdir()) == [cache / bundle.digest]


def test_one_thread_of_one_process_loads_a_bundle_and_the_others_wait(root: Path, cache: Path) -> None:
    """Each thread of a fresh worker loaded up to 500 MiB at the same time."""
    lay(root, TREE)
    bundle = pack(root)
    loads: list[int] = []
    all_wait = threading.Barrier(8, timeout=60)

    def load() -> bytes:
        loads.append(threading.get_ident())
        return bundle.data

    def unpacked() -> Path:
        all_wait.wait()
        return unpack(bundle.digest, load, cache)

    with ThreadPoolExecutor(8) as threads:
        found = {future.result() for future in [threads.submit(unpacked) for _ in range(8)]}
    assert found == {cache / bundle.digest}
    assert len(loads) == 1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EACCES])
def test_a_file_system_without_locks_has_bundles_too(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    bundle = pack(root)

    def refuses(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    monkeypatch.setattr("mops.project.bundle_cache._LOCK_SECONDS", 0.1)
    assert whole(unpack(bundle.digest, lambda: bundle.data, cache), bundle)
    assert list(cache.iterdir()) == [cache / bundle.digest]


def test_a_load_that_failed_is_done_again_by_who_waits(root: Path, cache: Path) -> None:
    bundle = pack(root)

    def fails() -> bytes:
        raise ConnectionError("the storage went away")

    with pytest.raises(ConnectionError):
        unpack(bundle.digest, fails, cache)
    assert whole(unpack(bundle.digest, lambda: bundle.data, cache), bundle)
    assert list(cache.iterdir()) == [cache / bundle.digest]


def test_an_unpacking_that_was_killed_is_not_taken_for_whole(root: Path, cache: Path) -> None:
    lay(root, {f"data/{n}.csv": "x" * 2000 for n in range(2000)})
    bundle = pack(root)
    process = start_unpacking(bundle, cache)
    go(process)
    deadline = time.monotonic() + 60
    while not list(cache.glob(".unpacking-*/data/10.csv")):  # the third of them: names are sorted as text
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [left] = cache.glob(".unpacking-*")
    n_written = len(list(left.rglob("*.csv")))
    assert 3 <= n_written < 2000
    os.utime(left, (0, 0))
    other = cache / f".unpacking-{bundle.digest}-other"  # perhaps of another machine that shares the folder
    other.mkdir()
    assert whole(unpack(bundle.digest, lambda: bundle.data, cache), bundle)
    assert set(cache.iterdir()) == {cache / bundle.digest, other}, "the old one is removed"


# --- where ------------------------------------------------------------------------------------------------------------


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mops" / "bundles"


@pytest.mark.parametrize("given", [None, "", "relative/cache"])
def test_the_cache_is_in_the_home_folder_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mops" / "bundles"


@pytest.mark.parametrize("home", ["a file", "", "a folder of root"])
def test_without_a_home_folder_that_can_be_written_the_cache_is_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, home: str
) -> None:
    """Regression: in a container without a writable home folder no job could start."""
    (tmp_path / "a file").touch()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home) if home else "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if home == "a folder of root":
        monkeypatch.setattr("os.access", lambda *_: False)
    if not home:
        monkeypatch.setattr("mops.system.user_folders.USER_FOLDERS", Homeless())
    for _ in range(2):
        assert cache_folder() == tmp_path / f"mops-{os.geteuid()}" / "cache" / "bundles"
    (warning,) = caplog.messages
    assert "set XDG_CACHE_HOME to use another folder" in warning
    assert stat.S_IMODE((tmp_path / f"mops-{os.geteuid()}").stat().st_mode) == 0o700


class Homeless:
    """As the folders of a user whom the system does not know."""

    @property
    def user_cache_path(self) -> Path:
        raise RuntimeError("Could not determine home directory.")


def test_a_storage_inside_the_project_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1")
    (tmp_path / "out" / "jobs").mkdir(parents=True)
    (tmp_path / "out" / "jobs" / "big.parquet").write_bytes(b"x")
    assert pack(tmp_path, tmp_path / "out").names == ("model.py",)
