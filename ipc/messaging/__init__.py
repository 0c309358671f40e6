"""Exchange messages between the processes of a run: classes, delivery, endpoints and transports."""
