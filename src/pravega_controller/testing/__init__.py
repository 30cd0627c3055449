"""Models and fakes for tests of the controller without a segment store process."""
