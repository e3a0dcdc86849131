"""A bare module: its one public class with `simulate` is the model; nothing else in it is a candidate."""

from collections import OrderedDict  # noqa: F401 (imported, so not this module's own)

from functions import plain  # a function by another name than run, simulate or model


class Settings:
    """A public class, but not a model."""

    days = 20


class _Base:
    """A model, but not public."""

    def simulate(self, params, seed):
        return plain(params, seed)


class Walk(_Base):
    """The model."""
