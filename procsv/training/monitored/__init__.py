"""MonitoredSession and its family: TensorFlow's classes, on procsv's services."""
