"""Models of other people's libraries in tiny random configurations: what a partitioner meets that its authors did not write.

They are exported from CPUs, on which some libraries make arrays when they are imported.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
