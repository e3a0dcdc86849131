"""Replace the simulations of a Dask worker by a pause: `dask worker --preload bench/simulated_worker.py`.

A slot then needs a thread and no child process, so that a small machine has a thousand slots. The runner, the scheduler
and the messages between them and the workers are real. `width.py` uses it.
"""

import time

import pyarrow as pa

from mops.study.column_types import families_in
from mops.task import Loss, ResultBuffer, Segment, TaskResult
from mops.worker.pool import Pool

FAMILIES = families_in(pa.table({"y": [0.0]}))
REFERENCE = {"out": FAMILIES}


def run(self, request, given=()):
    """Stand in for `Pool.run`: pause for the seconds that the parameter sets say, and return a row each."""
    if request.replicates == ():
        (group,) = request.groups
        losses = [Loss(group.index, target, target, 1.0, group.n_replicates) for target in request.context.targets]
        return TaskResult(request.keys, frozenset({group.index}), 0.001, REFERENCE, losses=losses)
    done = [(group, replicate) for group in request.groups for replicate in replicates(request, group)]
    seconds = sum(group.params["seconds"] for group, _ in done)
    time.sleep(seconds)
    table = pa.table({"y": [float(n) for n in range(len(done))]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    buffer = sink.getvalue()
    simulations = [(group.index, replicate) for group, replicate in done]
    segment = Segment("out", 0, buffer.size, simulations, [1] * len(done), FAMILIES)
    in_pieces = request.replicates is not None
    return TaskResult(
        keys=request.keys,
        done=frozenset() if in_pieces else frozenset(group.index for group in request.groups),
        seconds=seconds,
        reference=REFERENCE,
        replicates=frozenset(request.replicates) if in_pieces else frozenset(),
        buffers=[ResultBuffer(buffer, [segment])],
        allowed_bytes=1 << 30,
        own_bytes=1 << 27,
    )


def replicates(request, group):
    return range(group.n_replicates) if request.replicates is None else request.replicates


Pool.run = run
