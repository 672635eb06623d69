"""Every setting declared once: name, type, default, bounds, scope and a sentence.

`declare` says how; `topic`, `broker`, `zookeeper`, `network`, `groups`, `storage` are the settings.
From these are derived parsing (`load`, `properties`, `layers`), checks (`topic_rules`,
`broker_rules`, `foreign`), what `describe` says (`broker_config`), and the pages that `make
generate` writes. No I/O here.
"""
