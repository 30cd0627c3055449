"""The state that the readers of a group share, and the lag that follows from it."""
