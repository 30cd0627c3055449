"""Models and fakes that tests and simulations build on; never used by a serving process."""
