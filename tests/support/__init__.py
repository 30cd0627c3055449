"""Models, fakes and observed parts that tests and simulations build on."""
