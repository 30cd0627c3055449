"""The pages of the console, by what they are about."""
