"""What a search finds for programs as if nothing were sharded, beside what experts have written: predicted steps, memory, gaps.

    python -m benchmarks.search --machine v5p:4x4x4 --devices 64 llama32_scan_fsdp_tp moe_lm
    python -m benchmarks.search --machine h100:1x1x8 --devices 8
    python -m benchmarks.search --unrolled 80

Programs are those of `testdata/realistic`; of an expert's shardings those of inputs and constraints are meant. `--unrolled` is
the GPT of `gpt4_dp_tp` with so many layers, one after the other, as a program without `lax.scan` has them.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="all by default")
    parser.add_argument("--machine", default="v5p:4x4x4")
    parser.add_argument("--devices", type=int, default=64, help="as many as the machine's topology has")
    parser.add_argument("--unrolled", type=int, nargs="+", default=[], metavar="LAYERS", help="GPTs instead of programs")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

    import meshbridge
    from testdata.realistic.catalogue import BUILDERS
    from testdata.realistic.gpt import gpt

    print("| program | expert, ms | found, ms | found / expert | memory, GB | gap | tried | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    if unknown := {*options.programs} - {*BUILDERS}:
        parser.error(f"no program is named {', '.join(sorted(unknown))}; there are {', '.join(BUILDERS)}")
    programs = {name: BUILDERS[name] for name in options.programs or ([] if options.unrolled else BUILDERS)}
    programs |= {f"gpt{layers}_dp_tp": partial(gpt, "dp_tp", layers=layers, scan=False) for layers in options.unrolled}
    for name, build in programs.items():
        exported = build(devices=options.devices, annotated=True).export()
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
