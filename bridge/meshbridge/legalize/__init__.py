"""Source to legal: calls inlined, and every op one that has a sharding rule or is known to have none."""
