"""Raises at import."""

raise ImportError("this module cannot be had")
