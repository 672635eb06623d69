"""Clients of a cluster: those that applications use, and those that the `kdist` commands use.

Applications use `producer`, `consumer` and `admin`, and `classic` from the first design. Beneath
them, and used directly by commands and pipelines, `cluster` holds connections and metadata,
`discovery` finds the bootstrap brokers, and `background` runs the blocking clients' event loop;
`offsets` asks partition leaders for offsets, `committed` builds and reads the requests for
committed offsets, `produce_once` writes batches and `fetch_once` reads them. Every request uses the
newest version that client and broker share. `outages` logs what is lost and back, and `foreign` has
what other libraries' names are here.
"""
