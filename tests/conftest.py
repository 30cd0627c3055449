"""How hard Hypothesis tries: ``--hypothesis-profile`` chooses."""

from hypothesis import settings

# An example may take long on a machine that is busy with other tests.
settings.register_profile("usual", deadline=None)
# Where everything is several times slower, the same paths by fewer examples.
settings.register_profile("sanitize", max_examples=25, deadline=None)
settings.load_profile("usual")
