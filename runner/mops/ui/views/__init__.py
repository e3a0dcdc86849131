"""The contents of the pages, as plain data: pure functions of what was read from the storage."""
