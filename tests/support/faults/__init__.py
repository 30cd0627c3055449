"""Parts that fail when a test tells them to: chunk storages, tiers, the way to a server."""
