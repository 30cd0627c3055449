"""Parts that fail when a test tells them to: disks of the machine."""
