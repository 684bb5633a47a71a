"""The versions of a root: committed, claimed, merged and removed."""
