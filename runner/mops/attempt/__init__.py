"""One attempt of one job, in the runner's process: plans, sends, receives, commits."""
