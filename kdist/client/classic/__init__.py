"""The API of the first design: SimpleConsumer, ConsumerConnector, Message and their kind."""
