"""A model that fragments the heap of its process: it makes many objects and keeps few of them, scattered.

| parameter | meaning |
|---|---|
| `objects` | byte strings made by one simulation, a million at a time, of 10 to 688 bytes |
| `keep_every` | the model keeps one object in this many, in a cache of the last 400,000 |

The model frees the other objects in an order unrelated to the order in which it made them. Objects above 512 bytes come
from libc's allocator, the others from Python's.
"""

import os
import random
from collections import deque

CACHED = 400_000
AT_ONCE = 1_000_000
SIZES = (10, 400)

cache = deque(maxlen=CACHED)


def simulate(params, seed):
    """Return the process id and the size of the cache."""
    rng = random.Random(seed)
    for _ in range(0, params["objects"], AT_ONCE):
        least = rng.randint(*SIZES)  # sizes differ, so the next batch cannot use this one's free pages
        made = [bytes(least + i % 97 * 3) for i in range(AT_ONCE)]
        cache.extend(made[:: params["keep_every"]])
        free_scattered(made)
    return {"pid": os.getpid(), "cached": sum(map(len, cache))}


def free_scattered(made):
    """Drop the objects with a prime stride, so that neighbours are freed at different times."""
    stride = 7919
    for start in range(stride):
        made[start::stride] = [None] * len(range(start, len(made), stride))
