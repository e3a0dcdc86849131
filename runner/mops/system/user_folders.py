"""The user's folders for caches, configuration and state."""

from __future__ import annotations

from platformdirs.unix import Unix

USER_FOLDERS = Unix("mops")
"""The folders ``mops`` in those of the XDG Base Directory Specification, the same on every system.

A property raises RuntimeError if the user has no home folder and the variable names no absolute path.
"""
