"""The tables and what writes them are modules of this folder, where ``make pages`` finds them."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)
