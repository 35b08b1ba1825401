"""Bits: how many a token carries, and how many it takes on a wire."""
