"""Scripts of the house: the set-up, and the pages of docs/ that are generated."""
