"""The broker: the rooms put together, a handler for each request, and what it tells clients."""
