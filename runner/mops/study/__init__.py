"""What was asked for: the study's schema, identities and seeds. Pure: no storage, no Dask, no processes."""
