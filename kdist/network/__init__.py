"""Connections: the server's and the client's, over the machine's network or a simulated one.

`network` is the network that is passed in; `listener` admits connections and `connection` serves
one; `client` is the other side. `receiving` finds frames in the bytes received, `sending` sends
answers, `tick` batches the work of one iteration of the event loop. What frames mean is the
broker's affair.
"""
