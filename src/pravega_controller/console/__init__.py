"""The web console of a controller: pages on its HTTP port."""
