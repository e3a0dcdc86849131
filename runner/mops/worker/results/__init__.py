"""What child processes hand over: buffers in memory, and files of parts."""
