"""Algorithms, one file each; two algorithms never import each other."""
