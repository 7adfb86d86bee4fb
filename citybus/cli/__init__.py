"""The commands, a file each: `configure(parser)` declares its options and sets `run`, which gives the exit code."""
