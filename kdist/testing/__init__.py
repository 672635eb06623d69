"""The world on memory: disk, network, clock and ZooKeeper, to be passed in where the real ones are.

Each keeps the promises of the real one, passes the same contract tests, and can fail as that does
(docs/decisions/0009). No module of the product imports this package.
"""
