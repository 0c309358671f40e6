"""What runs inside the trainer: Supervisor, sessions, capture and restore of variables."""
