"""The process that starts a pool's processes, and leaves none of them alive."""
