"""Write narrow.json: a space around the 20 best sets of the job `wide`."""

import json
from pathlib import Path

import mops

space = json.loads(Path("space.json").read_text())
best = mops.open_job("wide").best(20).to_pandas()
for name, range_ in space.items():
    if isinstance(range_, dict):
        range_.update(min=best[name].min(), max=best[name].max())
Path("narrow.json").write_text(json.dumps(space, indent=2))
