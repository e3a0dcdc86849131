"""The nasty model, which misbehaves only in the replicate whose number is the parameter `sick`."""

import hashlib
import json
import time

import nasty


def simulate(params, seed):
    """Misbehave as `what` says, in every replicate or only in replicate `sick`; otherwise return a good table."""
    time.sleep(params.get("sleep", 0))
    if "sick" in params and seed != seed_of(params, params["sick"]):
        return nasty.good()
    return nasty.simulate({"what": params["what"]}, seed)


def seed_of(params, replicate):
    """Return the seed that the contract defines for a replicate."""
    text = "contracts:param:v1|" + json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    identity = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
    return int.from_bytes(hashlib.blake2b(f"{identity}:{replicate}".encode(), digest_size=8).digest(), "big") % 2**32
