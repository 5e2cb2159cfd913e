"""The event engine that plays a plan on a cluster without running it."""
