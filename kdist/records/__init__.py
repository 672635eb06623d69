"""Record batches: header, codec, compression, old message formats, validation.

Bytes in, values out: no socket, clock, thread or file.
"""
