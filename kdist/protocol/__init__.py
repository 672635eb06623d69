"""Message schemas, one file per API; framing; headers; the version table.

Bytes in, values out: no socket, clock, thread or file. `framing` finds a frame, `envelope` decodes
it to a header and a message and encodes them, `versions` lists every API. A message is declared
with `schema` in its API's file; `compiler`, `decoding` and `encoding` make its codec; `splice` lets
a response refer to records in files. Not in requests: `consumer_protocol`, `group_records`.
"""
