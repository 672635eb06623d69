"""Whether this process must not use compiled code: `KDIST_PURE=1` in its environment.

The CRC and the record codec look at it: both also have a slower version in plain Python. Tests set
it to run on those, as may hosts for which no wheel was built.
"""

import os

IS_PURE = os.environ.get("KDIST_PURE", "") not in ("", "0")
