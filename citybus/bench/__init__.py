"""Benchmarks of a running server: load, measures and reports. `citybus bench --help` lists the commands."""
