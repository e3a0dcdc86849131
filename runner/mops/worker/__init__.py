"""Runs in Dask workers, and in the children that they start. Imports nothing by itself: children import it."""
