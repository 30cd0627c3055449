"""Reader groups: their configurations, and their subscriptions to streams."""
