"""The trainer's side of procsv: Supervisor, sessions, capture and restore of variables."""
