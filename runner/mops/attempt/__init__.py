"""One attempt of one job: the runner plans, sends, receives and commits."""
