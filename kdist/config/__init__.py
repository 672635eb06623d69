"""Every setting declared once: name, type, default, bounds, scope and a sentence.

`declare` defines how. A broker's settings are in `broker`, `disk`, `groups`, `network`, `storage`,
`topic` and `zookeeper`; other programs' are in `agent`, `mirror` and `load_job`. Parsing (`load`,
`properties`, `layers`), checks (`topic_rules`, `broker_rules`, `foreign`), the whole configuration
(`broker_config`) and the pages that `make generate` writes are derived from these. No I/O here.
"""
