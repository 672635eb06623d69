"""Every setting declared once: name, type, default, bounds, scope and a sentence.

`declare` says how. A broker's settings are in `broker`, `disk`, `groups`, `network`, `storage`,
`topic` and `zookeeper`; other files have those of `agent`, `mirror` and `load_job`. Parsing
(`load`, `properties`, `layers`), checks (`topic_rules`, `broker_rules`, `foreign`), the whole
(`broker_config`) and the pages that `make generate` writes are derived from them. No I/O here.
"""
