"""Connections: the server's and the client's, over the machine's network or a simulated one.

`world` is the network that is passed in; `listener` accepts and `connection` serves; `client` asks.
`receiving` finds frames in what comes, `sending` gets answers out, `turn` holds together what one
turn of the event loop does. What the frames mean is the broker's.
"""
