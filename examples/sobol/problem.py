"""The parameters and their ranges, as SALib wants them."""

import math

PROBLEM = {"num_vars": 3, "names": ["x1", "x2", "x3"], "bounds": [[-math.pi, math.pi]] * 3}
