"""What a partitioned program costs: communication, and what was not partitioned."""
