"""All varied programs: importing this module enters every one of them."""

from __future__ import annotations

from tests.programs import varied_algorithms, varied_models
from tests.programs.varied_programs import PROGRAMS

__all__ = ["PROGRAMS", "varied_algorithms", "varied_models"]
