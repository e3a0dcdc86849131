"""What a job keeps: files, records, the log of commits, Parquet parts."""
