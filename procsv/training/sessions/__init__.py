"""Training in a graph session: `procsv.Supervisor`, and MonitoredSession with its family."""
