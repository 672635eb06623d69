"""Every setting declared once: name, type, default, bounds, scope and a sentence.

`declare` defines how. A broker's settings are in `broker`, `groups`, `network`, `replication`,
`storage` and `topic`; other programs' are in `agent`, `mirror` and `load_job`. Parsing (`load`,
`layers`, `texts`, `addresses`), checks (`topic_rules`, `broker_rules`, `foreign`), what is said of
them (`faults`), the whole configuration (`broker_config`) and the pages that `make generate` writes
are derived from these. No I/O here.
"""
