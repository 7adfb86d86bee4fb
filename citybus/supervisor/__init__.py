"""Keeps the executor and the scheduler running as child processes, for `citybus serve`."""
