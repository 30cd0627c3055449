"""The HTTP port of a controller: REST, health, and the document that describes both."""
