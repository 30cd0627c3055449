"""Programs around Python clients, one process each, so that no client uses the other one's CPU."""
