"""Parts that the Supervisor and monitored sessions share: controller, coordinator, waiting for a chief."""
