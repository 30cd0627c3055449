"""The controller: streams, epochs and scopes kept in table segments over the wire."""
