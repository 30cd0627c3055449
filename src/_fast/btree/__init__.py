"""The B+Tree of attributes, in memory alone: pages, updates, walks, and the cache of pages."""
