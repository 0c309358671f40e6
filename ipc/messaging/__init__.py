"""Messages between the processes of a run: their classes, delivery, endpoints and transports."""
