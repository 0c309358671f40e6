"""The watchdog's decisions: pure state machines from events and a time to actions."""
