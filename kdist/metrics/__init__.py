"""Every metric declared once, counted in plain integers and shown in Prometheus's format."""
