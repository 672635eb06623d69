"""Whether this process must do without compiled code: `KDIST_PURE=1` in its environment.

Asked by the CRC and by the record codec, which both have a slower twin in plain Python. Tests set
it to run on the twins, and so does a host for which nobody built a wheel.
"""

import os

IS_PURE = os.environ.get("KDIST_PURE", "") not in ("", "0")
