"""What Supervisor and monitored sessions share: coordinator, ways out, waiting for a chief."""
