"""The producer: records of an application to the leaders of their partitions, many at a time.

    front      `Producer` blocks, `AsyncProducer` is awaited; both drive the same `Core`
    gathering  `Accumulator` puts records into the open `Batch` of a partition; any thread
    sending    `Sender`, on the loop: batches that are due become requests, answers settle them

`Batch` is what all of it is about. A `Sent` is no more than a batch and an index in it, so that a
record costs a list's entry and one small object. Numbering for idempotence: `PartitionQueue`; what
an answer's error means: `verdicts` (pure); where leaders are: `Topics`.
"""
