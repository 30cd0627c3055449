"""The verbs that show the state of a machine, its servers and its streams."""
