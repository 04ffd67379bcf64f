"""The programs in realistic sizes: each is exported for accelerators that are not there, and partitioned with nothing gathered
for want of a rule."""

from __future__ import annotations

import pytest

import meshbridge
from testdata.realistic.catalogue import BUILDERS, build, variants

SHORT = ("vocab_loss", "cp_attention", "decode_sequence")
CASES = [
    pytest.param(name, annotation, marks=() if name in SHORT else pytest.mark.slow)
    for name in BUILDERS
    for annotation in variants(name)
]


@pytest.mark.parametrize(("name", "annotation"), CASES)
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_program_is_exported_and_partitioned(name: str, annotation: str, platform: str) -> None:
    exported = build(name, annotation, 8).export_for(platform)
    assert exported.platforms == (platform,)
    assert exported.nr_devices == 8
    report = meshbridge.report(exported)
    assert report.wire_bytes > 0
    assert not report.not_partitioned


def test_constraints_are_what_the_annotations_differ_by() -> None:
    texts = [build("vocab_loss", annotation, 8).export_for("tpu").mlir_module() for annotation in variants("vocab_loss")]
    assert ["sharding_constraint" in text for text in texts] == [True, False]
    assert all(text.count("tf.aliasing_output") == 2 for text in texts), "both tables are donated"
    assert all("bf16" in text for text in texts)


def test_a_batch_grows_with_the_devices() -> None:
    small, large = (build("gpt8_scan_dp_tp", "constrained", devices) for devices in (8, 64))
    assert (small.axes, large.axes) == ((("data", 2), ("model", 4)), (("data", 16), ("model", 4)))
    assert large.arguments[1].shape[0] == 8 * small.arguments[1].shape[0]


def test_unknown_programs_are_named() -> None:
    with pytest.raises(ValueError, match="no program is named 'gpt'"):
        build("gpt", "constrained", 8)
    with pytest.raises(ValueError, match="6 devices"):
        build("vocab_loss", "inputs", 6)
