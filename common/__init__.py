"""The words both services speak."""
