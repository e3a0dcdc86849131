"""A registered target in calabaria's form: a factory without arguments."""

from types import SimpleNamespace


class TotalCases:
    """Distance of the mean number of cases from the 200 that were observed."""

    def evaluate(self, replicated_outputs):
        totals = [outputs["incidence"]["incidence"].sum() for outputs in replicated_outputs]
        return SimpleNamespace(name="incidence", loss=abs(sum(totals) / len(totals) - 200))


def incidence_target():
    """Make the target."""
    return TotalCases()
