"""The tree of shared prefixes: who owns which cells, and who borrows them."""
