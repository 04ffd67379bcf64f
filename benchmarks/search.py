"""What a search finds for programs as if nothing were sharded, beside what experts have written: predicted steps, memory, gaps.

    python -m benchmarks.search --machine v5p:4x4x4 --devices 64 llama32_scan_fsdp_tp moe_lm
    python -m benchmarks.search --machine h100:1x1x8 --devices 8

Programs are those of `testdata/realistic`; of an expert's shardings those of inputs and constraints are meant.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="all by default")
    parser.add_argument("--machine", default="v5p:4x4x4")
    parser.add_argument("--devices", type=int, default=64, help="as many as the machine's topology has")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

    import meshbridge
    from testdata.realistic.catalogue import BUILDERS, build

    print("| program | expert, ms | found, ms | found / expert | memory, GB | gap | tried | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.programs or BUILDERS:
        exported = build(name, "constrained", options.devices).export()
        written = meshbridge.report(exported, machine=options.machine)
        began = time.monotonic()
        found = meshbridge.search(exported, machine=options.machine, keep_annotations=False, seconds=options.seconds)
        took = time.monotonic() - began
        assert written.seconds is not None
        row = [name, f"{written.seconds * 1e3:.2f}", f"{found.seconds * 1e3:.2f}", f"{found.seconds / written.seconds:.3f}"]
        row += [
            f"{written.peak_bytes / 1e9:.2f} -> {found.peak_bytes / 1e9:.2f}",
            f"{found.gap:.1%}",
            str(found.tried),
            f"{took:.0f}",
        ]
        print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
