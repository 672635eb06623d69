"""The broker: the packages put together, a handler for each request, and what it tells clients."""
