"""Wheels for tests, which install without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *, scripts: dict[str, str] | None = None, **modules: str) -> Path:
    """Make a wheel.

    Parameters
    ----------
    scripts
        The text of each command, by name.
    modules
        The text of each module, by name. ``package__init`` becomes ``package/__init__.py``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {f"{module.replace('__init', '/__init__')}.py": text for module, text in modules.items()}
    files |= {f"{name}-{version}.data/scripts/{command}": text for command, text in (scripts or {}).items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    recorded = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{recorded}{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            entry = zipfile.ZipInfo(inside)
            entry.external_attr = 0o100755 << 16  # so that pip makes a command executable
            archive.writestr(entry, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
