"""The verbs that tell how a machine, its servers and its streams do."""
