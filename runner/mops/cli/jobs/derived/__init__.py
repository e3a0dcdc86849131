"""Commands that make a job from another, or compare two jobs."""
