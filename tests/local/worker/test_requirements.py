"""The file of a project that lists the requirements of its model, and the projects that share an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases import case_folder
from mops.errors import InstallError
from mops.worker.install import Dependencies, last_lines, masked, read_dependencies

PROJECT = """
[project]
name = "sir"
version = "1"
dependencies = ["starsim>=3", "polars"]
"""
ROOT = """
[[package]]
name = "sir"
version = "1"
source = { virtual = "." }
"""
LOCK = (
    ROOT
    + """
[[package]]
name = "polars"
version = "1.30.0"
source = { registry = "https://pypi.org/simple" }
"""
)


def project(root: Path, **files: str) -> Path:
    """Write files into a folder. An underscore in a keyword stands for a dot."""
    for name, text in files.items():
        (root / name.replace("_", ".")).write_text(text)
    return root


def of_requirements(root: Path, text: str) -> Dependencies:
    found = read_dependencies(project(root, requirements_txt=text))
    assert found is not None
    return found


def test_the_first_of_three_files_counts(tmp_path: Path) -> None:
    project(tmp_path, pyproject_toml=PROJECT)
    assert read_dependencies(tmp_path) == Dependencies(
        "pyproject.toml", ("starsim>=3", "polars"), requirements=("starsim>=3", "polars")
    )
    project(tmp_path, uv_lock=LOCK)
    assert read_dependencies(tmp_path) == Dependencies("uv.lock", (LOCK, PROJECT), hashed=True)
    project(tmp_path, requirements_txt="polars\n")
    assert read_dependencies(tmp_path) == Dependencies("requirements.txt", ("polars\n",))


def test_a_file_below_the_root_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    project(tmp_path / "docs", requirements_txt="sphinx\n")
    assert read_dependencies(tmp_path) is None


def test_no_requirements(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for files in [
        {},
        {"requirements_txt": "# nothing yet\n\n"},
        {"requirements_txt": "# nothing yet\n", "pyproject_toml": PROJECT},
        {"pyproject_toml": "[tool.ruff]\nline-length = 100\n"},
        {"pyproject_toml": "[project]\nname = 'x'\ndynamic = ['dependencies']\n"},
        {"pyproject_toml": "[project]\nname = 'x'\ndependencies = []\n"},
        {"pyproject_toml": PROJECT, "uv_lock": ROOT},
        {"uv_lock": "[manifest]\n"},
    ]:
        with case_folder(subtests, tmp_path, files) as folder:
            assert read_dependencies(project(folder, **files)) is None


def test_lines_that_name_no_file_of_the_bundle(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text in [
        "polars",
        "polars==1.30  # fast",
        "ruamel.yaml[extra] >= 1 ; python_version < '3.13'",
        "polars==1.30 \\\n    --hash=sha256:abc \\\n    --hash=sha256:def",
        "polars (>=1.30, <2) ; sys_platform == 'linux'",
        "model @ https://host/model-1.0.tar.gz",
        "model @ git+https://host/model@v1",
        "--index-url https://host/simple\n--extra-index-url=https://other/simple\n-i https://host\npolars",
        "--pre\n--no-index\n--only-binary :all:\n--require-hashes\npolars",
    ]:
        with case_folder(subtests, tmp_path, text) as folder:
            assert not of_requirements(folder, text).of_bundle


def test_lines_that_may_name_a_file_of_the_bundle(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Otherwise two bundles with different wheels of the same names would share an environment."""
    for text in [
        "./wheels/model-1.0-py3-none-any.whl",
        "wheels/model-1.0-py3-none-any.whl",
        "model-1.0-py3-none-any.whl",
        "model-1.0.TAR.GZ ; python_version > '3'",
        "model-1.0-py3-none-any.whl[extra]",
        "model @ ./lib",
        "polars>=${OLDEST}",
        ".",
        "./lib",
        "-e ./lib",
        "--editable=lib",
        "-r more.txt",
        "-rmore.txt",
        "-c limits.txt",
        "--find-links wheels\nmodel",
        "-f wheels\nmodel",
        "model @ file:///here/model-1.0.tar.gz",
        "--index-url file:///here/simple\nmodel",
        "--something-new x",
    ]:
        with case_folder(subtests, tmp_path, text) as folder:
            assert of_requirements(folder, text).of_bundle


def test_sources_of_a_lock(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """pip requires hashes for all packages or none, and accepts no hashes for folders and repositories."""
    for source, of_bundle, hashed in [
        ('{ registry = "https://pypi.org/simple" }', False, True),
        ('{ url = "https://host/model-1.0.tar.gz" }', False, True),
        ('{ git = "https://host/model?rev=1#2" }', False, False),
        ('{ registry = "wheels" }', True, True),
        ('{ path = "wheels/model-1.0-py3-none-any.whl" }', True, True),
        ('{ editable = "lib" }', True, False),
        ('{ directory = "lib" }', True, False),
    ]:
        with case_folder(subtests, tmp_path, (source, of_bundle, hashed)) as folder:
            other = f'[[package]]\nname = "model"\nversion = "1"\nsource = {source}\n'
            found = read_dependencies(project(folder, pyproject_toml=PROJECT, uv_lock=LOCK + other))
            assert found is not None
            assert (found.of_bundle, found.hashed) == (of_bundle, hashed)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InstallError) as raised:
        read_dependencies(project(tmp_path, pyproject_toml="[project]\nname =\n"))
    assert str(raised.value) == (
        "the model's dependencies cannot be read: Invalid value (at line 2, column 7)\n  at: pyproject.toml"
    )
    assert raised.value.exit_code == 2


def test_sources_that_only_uv_reads_are_refused_without_a_lock(tmp_path: Path) -> None:
    """pip would install a foreign package of that name from the index."""
    sources = '[tool.uv.sources]\nstarsim = { path = "starsim" }\n'
    with pytest.raises(InstallError) as raised:
        read_dependencies(project(tmp_path, pyproject_toml=PROJECT + sources))
    assert str(raised.value) == (
        "pip ignores the sources of starsim, which only uv reads\n"
        "  at: pyproject.toml: [tool.uv.sources]\n"
        "hint: add uv.lock to the project (uv lock), or a requirements.txt"
    )
    assert read_dependencies(project(tmp_path, uv_lock=LOCK)) is not None


MACHINE = ["3.12.1", "linux-x86_64", "numpy-2.4.6.dist-info"]


def test_the_requirements_choose_the_environment(tmp_path: Path) -> None:
    plain = of_requirements(tmp_path, "polars\n")
    key = plain.key("bundle", MACHINE, {})
    assert len(key) == 32
    assert plain.key("other bundle", MACHINE, {"PATH": "/bin"}) == key, "code alone is other"
    others = [
        of_requirements(tmp_path, "polars==1.30\n").key("bundle", MACHINE, {}),
        plain.key("bundle", ["3.13.0", *MACHINE[1:]], {}),
        plain.key("bundle", MACHINE, {"PIP_INDEX_URL": "https://host/simple"}),
        plain.key("bundle", MACHINE, {"UV_INDEX": "https://host/simple"}),
        Dependencies("pyproject.toml", plain.content).key("bundle", MACHINE, {}),
    ]
    assert len({key, *others}) == 6


def test_variables_in_the_file_also_choose_the_environment(tmp_path: Path) -> None:
    found = of_requirements(tmp_path, "--index-url https://${USER_NAME}:${TOKEN}@host/simple\nmodel\n")
    keys = {found.key("bundle", MACHINE, {"TOKEN": value, "OTHER": value}) for value in ("a", "b")}
    assert len(keys) == 2


def test_a_bundle_whose_files_are_installed_has_a_separate_environment(tmp_path: Path) -> None:
    found = of_requirements(tmp_path, "./wheels/model-1.0-py3-none-any.whl\n")
    assert found.key("a", MACHINE, {}) != found.key("b", MACHINE, {})


def test_passwords_in_urls_are_not_shown(subtests: pytest.Subtests) -> None:
    for said, shown in [
        ("https://user:c2VjcmV0@host/simple", "https://****@host/simple"),
        ("https://c2VjcmV0@host:8080/simple", "https://****@host:8080/simple"),
        ("git+ssh://git:c2V@cmV0@host/x@v1", "git+ssh://****@host/x@v1"),
        ("--index-url=https://u:c2VjcmV0@a/s https://v:c2VjcmV0@b/s", "--index-url=https://****@a/s https://****@b/s"),
        ("https://host/x@v1", "https://host/x@v1"),
        ("polars @ https://host/x.whl", "polars @ https://host/x.whl"),
    ]:
        with subtests.test(str((said, shown))):
            assert masked(said) == shown


def test_the_last_lines_of_an_installer() -> None:
    said = "".join(f"line {i}\n\n" for i in range(20)) + f"at https://u:c2VjcmV0@host/ {'x' * 500}\r\n"
    lines = last_lines(said).split("\n")
    assert lines[:2] == ["", "  line 6"]
    assert len(lines) == 16
    assert lines[-1].startswith("  at https://****@host/ xxx")
    assert len(lines[-1]) == 302
    assert last_lines("") == ""
