"""The process that starts a pool's child processes and ends what they leave."""
