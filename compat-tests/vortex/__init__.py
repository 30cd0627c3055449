"""Runs a real store under real load and breaks things around it, for as long as one likes."""
