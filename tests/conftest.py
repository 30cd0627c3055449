"""How hard Hypothesis tries: ``--hypothesis-profile`` chooses."""

from hypothesis import settings

# Where everything is several times slower, the same paths by fewer examples.
settings.register_profile("sanitize", max_examples=25, deadline=None)
