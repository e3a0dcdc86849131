"""Make study.json: 64 parameter sets that fill the space evenly (scrambled Sobol), 5 replicates each.

Run it as `python make_study.py`.
"""

import json
from pathlib import Path

from scipy.stats import qmc

# name: (lowest, highest, decimals). Rounded, so that people can read, quote and type a value.
RANGES = {
    "beta": (0.01, 0.06, 4),
    "infectious_days": (3.0, 12.0, 2),
    "initial_prevalence": (0.002, 0.02, 4),
}
N_SETS_LOG2 = 6  # Sobol points are balanced in powers of two
N_REPLICATES = 5
SEED = 1927  # the year of Kermack and McKendrick


def parameter_sets() -> list[dict[str, float]]:
    """Draw the parameter sets; each call draws the same ones."""
    points = qmc.Sobol(d=len(RANGES), scramble=True, rng=SEED).random_base2(N_SETS_LOG2)
    lowest, highest, decimals = zip(*RANGES.values(), strict=True)
    scaled = qmc.scale(points, lowest, highest).tolist()
    return [
        {name: round(value, digits) for name, value, digits in zip(RANGES, point, decimals, strict=True)}
        for point in scaled
    ]


def main() -> None:
    """Write the study next to this script, one parameter set per line."""
    study = {
        "model": "models.sir:SIR",
        "n_replicates": N_REPLICATES,
        "targets": ["targets.incidence:daily_cases", "targets.serology:survey"],
        "sampling_method": "sobol",
        "metadata": {"ranges": {name: list(limits[:2]) for name, limits in RANGES.items()}, "seed": SEED},
    }
    head = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in study.items()]
    sets = ",\n".join(f"    {json.dumps(params)}" for params in parameter_sets())
    text = "\n".join(["{", *head, '  "parameter_sets": [', sets, "  ]", "}", ""])
    Path(__file__).with_name("study.json").write_text(text)


if __name__ == "__main__":
    main()
