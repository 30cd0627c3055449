"""Reader groups: their state, their readers, and what is done to a group as a whole."""
