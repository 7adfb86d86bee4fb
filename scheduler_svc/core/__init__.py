"""The pure state machine: events and `now` in, plans and updates out."""
