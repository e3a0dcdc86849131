"""A study file: parameter sets, groups, ids, seeds, types of outputs."""
