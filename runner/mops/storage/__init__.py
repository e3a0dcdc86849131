"""What was kept: files, records, Parquet parts, bundles. Knows nothing of Dask or of running models."""
