"""Fast paths: requests that differ from an earlier one in few bytes, answered without decoding."""
