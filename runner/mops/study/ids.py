"""Identities and seeds: canonical, so that every tool and every run agrees. STUDY.md, "Identity and seeds"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b

_PREFIX = "contracts:param:v1|"


def canonical_json(params: Mapping[str, object]) -> str:
    """Return the parameters as canonical JSON: keys sorted, no spaces, not escaped."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def param_id(params: Mapping[str, object]) -> str:
    """Return the hexadecimal BLAKE2b (32 bytes) of a parameter set; 1 and 1.0 differ, -0.0 is kept."""
    return blake2b((_PREFIX + canonical_json(params)).encode(), digest_size=32).hexdigest()


def replicate_seed(identity: str, replicate: int) -> int:
    """Return the seed of a replicate: 32 bits of BLAKE2b over ``<param_id>:<replicate>``."""
    return _seed(f"{identity}:{replicate}")


def target_seed(identity: str, target: str) -> int:
    """Return what generators are seeded with for a target: 32 bits of BLAKE2b over ``<param_id>:<target>``."""
    return _seed(f"{identity}:{target}")


def _seed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 2**32
