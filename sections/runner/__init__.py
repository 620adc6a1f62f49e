"""The parent process of the tour: standard library only."""
