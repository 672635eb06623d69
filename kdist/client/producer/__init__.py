"""The producer: sends an application's records, in batches, to the leaders of their partitions.

    front      `Producer` blocks, `AsyncProducer` is awaited; both drive the same `Core`
    gathering  `Accumulator` appends records to a partition's open `ProducerBatch`, on any thread
    sending    `Sender`, on the event loop, puts due batches into requests and handles the answers

Everything turns on `ProducerBatch`. A `Sent` is only a batch and an index in it, so a record costs
one list entry and one small object. `PartitionQueue` numbers batches for idempotence, `Settling`
decides what an error means for its batch, and `Metadata` knows the leaders.
"""
