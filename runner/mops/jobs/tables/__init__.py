"""The results of a job as tables: what they hold, which rows they select, and how other libraries get them."""
