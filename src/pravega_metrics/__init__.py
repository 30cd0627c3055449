"""The measurements of our servers: declared once, recorded in Cython, told to Prometheus."""
