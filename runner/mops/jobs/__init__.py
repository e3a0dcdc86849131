"""What users do with jobs, from a terminal or from Python."""

import sys

import mops

sys.modules[__name__].__class__ = mops.CallableModule  # mops.jobs() lists jobs
