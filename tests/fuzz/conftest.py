"""The targets and what runs them are modules of this folder; ``make fuzz`` finds them likewise."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)
