"""A whole run on an H200, h200.json, and what README takes from it."""
