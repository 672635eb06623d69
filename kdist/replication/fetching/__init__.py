"""How a follower's replicas are filled: fetched from their leaders, and cut off where they diverge.

`fetchers.py` has one `ReplicaFetcher` for each broker that leads something followed here.
"""
