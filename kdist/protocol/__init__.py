"""Message schemas, one file per API; framing; headers; the version table.

Bytes in, values out: no socket, clock, thread or file. `framing` finds a frame, `envelope` makes it
a header and a message and back, `versions` lists every API. A message is declared with `schema` in
its API's file; `compiler`, `decoding` and `encoding` make its codec; `splice` lets a response leave
its records in their files. Outside of requests: `consumer_protocol`, `group_records`.
"""
