"""Message schemas, one file per API; frames; the version table.

Bytes in, values out: no socket, clock, thread or file. `frame` finds a frame, decodes it to a
header and a message and encodes them; `api` says what an API is, `versions` lists every one. A
message is declared with `schema` in its API's file; `compiler` makes its codec, from the source
that `codec_source` generates. Not in requests: `consumer_protocol`, `group_records`.
"""
