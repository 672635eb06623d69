"""kdist: a bare-metal distribution of a Kafka-style commit log.

The rooms and what each is for stand in ARCHITECTURE.md; imports between them only go down.
"""
