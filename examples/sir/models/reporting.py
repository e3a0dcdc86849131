"""How many infections a health office hears of: the common assumption of the model and of the targets."""

REPORTING = 0.5  # share of the infections that are reported as cases
