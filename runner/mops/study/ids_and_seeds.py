"""Identities and seeds, which are the same in every tool and every run. See docs/reference/study.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b

SHOWN_CHARACTERS = 12
_IDS_LISTED = 5

_PREFIX = b"contracts:param:v1|"
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical_json(params: Mapping[str, object]) -> str:
    """Return the parameters as canonical JSON: keys sorted, no spaces, not escaped."""
    return _canonical.encode(params)


def identity_of(canonical: str) -> bytes:
    """Return the BLAKE2b (32 bytes) of a parameter set, given as canonical JSON."""
    return blake2b(_PREFIX + canonical.encode(), digest_size=32).digest()


def param_id(params: Mapping[str, object]) -> str:
    """Return the hexadecimal identity of a parameter set; 1 and 1.0 differ, -0.0 is kept."""
    return identity_of(canonical_json(params)).hex()


def short_id(identity: str) -> str:
    """Return the part of a param_id that people see."""
    return identity[:SHOWN_CHARACTERS]


def told_apart(start: str, ids: Sequence[str]) -> str:
    """Return ids that begin alike, as a list for a person who gave only this beginning."""
    listed = ", ".join(one[: max(SHOWN_CHARACTERS, len(start) + 4)] for one in ids[:_IDS_LISTED])
    return listed + (f" and {len(ids) - _IDS_LISTED:,} more" if len(ids) > _IDS_LISTED else "")


def replicate_seed(identity: str, replicate: int) -> int:
    """Return the seed of a replicate: 32 bits of BLAKE2b over ``<param_id>:<replicate>``."""
    return _seed(f"{identity}:{replicate}")


def round_seed(identity: str, seed: int, k: int, replicate: int) -> int:
    """Return the seed of a replicate in round ``k`` of a calibration with a seed."""
    # 32 bits of BLAKE2b over ``<param_id>:<seed>:<k>:<replicate>``.
    return _seed(f"{identity}:{seed}:{k}:{replicate}")


def target_seed(identity: str, target: str) -> int:
    """Return the seed of the random generators for a target: 32 bits of BLAKE2b over ``<param_id>:<target>``."""
    return _seed(f"{identity}:{target}")


def _seed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()[-4:], "big")
